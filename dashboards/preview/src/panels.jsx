// One body per panel type. Grafana's own components where the npm packages export them, SVG where they do not.
import { FieldType, VizOrientation, getDisplayValueAlignmentFactors, getFieldDisplayValues, renderTextPanelMarkdown } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, VizRepeater, measureText } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

const NAME_SIZE = 12;
const valueFields = (frames) => frames.flatMap((frame) => frame.fields.filter((f) => f.type !== FieldType.time).map((field) => ({ frame, field })));
const labelText = (v) => `${v.prefix ?? ''}${v.text ?? ''}${v.suffix ?? ''}`;

function displayValues({ panel, frames, theme, replace }, sparkline) {
  const reduceOptions = { calcs: ['lastNotNull'], values: false, fields: '', ...panel.options?.reduceOptions };
  return getFieldDisplayValues({ fieldConfig: { defaults: {}, overrides: [], ...panel.fieldConfig }, reduceOptions, replaceVariables: replace, theme, data: frames, sparkline, timeZone: 'browser' });
}

function Repeated({ ctx, sparkline, autoGrid, orientation, minVizHeight = 0, minVizWidth = 0, maxVizHeight, itemSpacing, children }) {
  const values = displayValues(ctx, sparkline);
  return (
    <VizRepeater source={ctx.frames} getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors} renderCounter={0} width={ctx.width} height={ctx.height}
      orientation={orientation || VizOrientation.Auto} autoGrid={autoGrid} minVizHeight={minVizHeight} minVizWidth={minVizWidth} maxVizHeight={maxVizHeight} itemSpacing={itemSpacing} renderValue={children} />
  );
}

function Stat(ctx) {
  const { panel, theme, timeRange } = ctx, o = panel.options || {};
  const textMode = (o.textMode ?? 'auto') === 'auto' && (panel.fieldConfig?.defaults?.displayName || !panel.title) ? 'value_and_name' : o.textMode ?? 'auto';
  return (
    <Repeated ctx={ctx} sparkline={(o.graphMode ?? 'area') !== 'none'} autoGrid orientation={o.orientation}>
      {({ value, width, height, count, alignmentFactors }) => (
        <BigValue value={value.display} count={count} sparkline={value.sparkline && { ...value.sparkline, timeRange }} alignmentFactors={alignmentFactors} width={width} height={height} theme={theme}
          colorMode={o.colorMode || 'value'} graphMode={o.graphMode || 'area'} justifyMode={o.justifyMode || 'auto'} textMode={textMode} text={o.text} wideLayout={o.wideLayout ?? true} />
      )}
    </Repeated>
  );
}

function BarGauges(ctx) {
  const { panel, theme } = ctx, o = panel.options || {};
  return (
    <Repeated ctx={ctx} orientation={o.orientation} minVizHeight={o.minVizHeight ?? 16} minVizWidth={o.minVizWidth ?? 8} maxVizHeight={o.maxVizHeight ?? 300} itemSpacing={10}>
      {({ value, width, height, orientation, count, alignmentFactors }) => (
        <BarGauge value={count === 1 && !panel.fieldConfig?.defaults?.displayName ? { ...value.display, title: undefined } : value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          width={width} height={height} orientation={orientation} alignmentFactors={alignmentFactors} theme={theme} text={o.text} itemSpacing={10} lcdCellWidth={8}
          displayMode={o.displayMode || 'gradient'} valueDisplayMode={o.valueMode || 'color'} namePlacement={o.namePlacement || 'auto'} showUnfilled={o.showUnfilled ?? true} />
      )}
    </Repeated>
  );
}

const polar = (cx, cy, r, turn) => [cx + r * Math.cos(turn * 2 * Math.PI), cy + r * Math.sin(turn * 2 * Math.PI)];
function arc(cx, cy, r, from, to) {
  const [x0, y0] = polar(cx, cy, r, from), [x1, y1] = polar(cx, cy, r, to);
  return `M${x0},${y0} A${r},${r} 0 ${to - from > 0.5 ? 1 : 0} 1 ${x1},${y1}`;
}

// Grafana's gauge is not in the npm packages: a three-quarter ring with the thresholds as a thin outer ring.
function Dial({ value, width, height, count, theme }) {
  const { display, field } = value;
  const name = count > 1 || field.displayName ? display.title : '';
  const r = Math.max(10, Math.min(width / 2 - 12, (height - (name ? 20 : 0)) / 1.72 - 8)), cx = width / 2, cy = r + 10, thick = r * 0.2, inner = r - thick - 6;
  const min = field.min ?? 0, max = field.max ?? 100, START = 0.375, SPAN = 0.75;
  const at = (x) => START + SPAN * Math.min(1, Math.max(0, (x - min) / (max - min || 1)));
  const steps = field.thresholds.steps, percent = field.thresholds.mode === 'percentage';
  const edge = (s) => (s.value === -Infinity ? min : percent ? min + (s.value / 100) * (max - min) : s.value);
  return (
    <svg width={width} height={height} style={{ fontFamily: theme.typography.fontFamily }}>
      <path d={arc(cx, cy, r - thick / 2 - 6, START, START + SPAN)} fill="none" stroke={theme.colors.background.secondary} strokeWidth={thick} />
      {Number.isFinite(display.numeric) && at(display.numeric) > START && <path d={arc(cx, cy, r - thick / 2 - 6, START, at(display.numeric))} fill="none" stroke={display.color} strokeWidth={thick} />}
      {steps.map((s, i) => {
        const from = at(edge(s)), to = steps[i + 1] ? at(edge(steps[i + 1])) : START + SPAN;
        return to > from && <path key={i} d={arc(cx, cy, r - 2, from, to)} fill="none" stroke={theme.visualization.getColorByName(s.color)} strokeWidth={4} />;
      })}
      <text x={cx} y={cy + r * 0.12} textAnchor="middle" fontSize={Math.min(r * 0.38, (inner * 3.1) / Math.max(3, labelText(display).length))} fontWeight={500} fill={display.color}>{labelText(display)}</text>
      {name && <text x={cx} y={height - 4} textAnchor="middle" fontSize={NAME_SIZE} fill={theme.colors.text.primary}>{name}</text>}
    </svg>
  );
}

function Gauges(ctx) {
  return <Repeated ctx={ctx} autoGrid orientation={ctx.panel.options?.orientation} minVizHeight={60} minVizWidth={60}>{(p) => <Dial {...p} theme={ctx.theme} />}</Repeated>;
}

// Runs of equal display text; a gap of more than one and a half steps ends a run.
function segments(times, field, step, merge) {
  const out = [];
  times.forEach((t, i) => {
    const value = field.values[i];
    if (value === null || value === undefined || Number.isNaN(value)) return;
    const shown = field.display(value), last = out.at(-1);
    if (merge && last && last.text === labelText(shown) && t - last.to <= step * 0.5) last.to = t + step;
    else out.push({ from: t, to: t + step, text: labelText(shown), color: shown.color });
  });
  return out;
}

function StateTimeline({ panel, frames, theme, width, height, timeRange }) {
  const o = panel.options || {}, from = timeRange.from.valueOf(), to = timeRange.to.valueOf();
  const history = panel.type === 'status-history', fill = o.rowHeight ?? 0.9;
  const rows = valueFields(frames).map(({ frame, field }) => {
    const times = frame.fields.find((f) => f.type === FieldType.time)?.values || [];
    const step = frame.meta?.stepMs || (times.length > 1 ? times[1] - times[0] : to - from);
    return { name: field.state.displayName, runs: segments(times, field, step, !history && (o.mergeValues ?? true)) };
  });
  const legend = o.legend?.showLegend === false ? [] : [...new Map(rows.flatMap((r) => r.runs).map((s) => [s.text, s.color]))].slice(0, 12);
  const left = Math.min(width * 0.4, 14 + 1.15 * Math.max(0, ...rows.map((r) => measureText(r.name, NAME_SIZE).width))); // the text is drawn a little wider than measured
  const bottom = height - 20 - (legend.length ? 22 : 0), rowHeight = bottom / Math.max(1, rows.length);
  const x = (t) => left + (Math.min(to, Math.max(from, t)) - from) / (to - from) * (width - left - 8);
  const showValue = o.showValue ?? 'auto';
  return (
    <svg width={width} height={height} style={{ fontFamily: theme.typography.fontFamily, fontSize: NAME_SIZE }}>
      {rows.map((row, i) => (
        <g key={i}>
          <text x={left - 6} y={(i + 0.5) * rowHeight + 4} textAnchor="end" fontSize={Math.min(NAME_SIZE, rowHeight)} fill={theme.colors.text.primary}>{row.name}</text>
          {row.runs.map((s, k) => {
            const w = Math.max(1, x(s.to) - x(s.from) - (history ? 1 : 0)), fits = measureText(s.text, NAME_SIZE).width + 8 < w && rowHeight * fill >= 13;
            return (
              <g key={k}>
                <rect x={x(s.from)} y={i * rowHeight + rowHeight * (1 - fill) / 2} width={w} height={rowHeight * fill} fill={s.color} />
                {(showValue === 'always' || (showValue === 'auto' && fits)) && <text x={x(s.from) + 4} y={(i + 0.5) * rowHeight + 4} fill={theme.colors.getContrastText(s.color)}>{s.text}</text>}
              </g>
            );
          })}
        </g>
      ))}
      {[0, 1, 2, 3, 4, 5].map((i) => {
        const t = from + (to - from) * i / 5;
        return <text key={i} x={x(t)} y={bottom + 16} textAnchor={i === 5 ? 'end' : i ? 'middle' : 'start'} fill={theme.colors.text.secondary}>{new Date(t).toTimeString().slice(0, 5)}</text>;
      })}
      {legend.reduce((acc, [text, color]) => {
        acc.nodes.push(<g key={text}><rect x={acc.x} y={height - 12} width={14} height={4} rx={2} fill={color} /><text x={acc.x + 19} y={height - 6} fill={theme.colors.text.primary}>{text}</text></g>);
        acc.x += 34 + measureText(text, NAME_SIZE).width;
        return acc;
      }, { x: left, nodes: [] }).nodes}
    </svg>
  );
}

function Series({ panel, frames, width, height, timeRange }) {
  const legend = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...panel.options?.legend };
  return <TimeSeries frames={frames} width={width} height={height} timeRange={timeRange} timeZone="browser" legend={legend} options={{}} />;
}

function DataTable({ panel, frames, width, height, timeRange }) {
  const o = panel.options || {};
  return (
    <TableNG data={frames[Math.min(o.frameIndex ?? 0, frames.length - 1)]} width={width} height={height} noHeader={o.showHeader === false} cellHeight={o.cellHeight} initialSortBy={o.sortBy}
      enablePagination={o.enablePagination} frozenColumns={o.frozenColumns?.left} timeRange={timeRange} fieldConfig={panel.fieldConfig} disableSanitizeHtml={false} structureRev={1} />
  );
}

function Text({ panel, replace, theme }) {
  const o = panel.options || {}, html = o.mode === 'html' ? null : renderTextPanelMarkdown(replace(o.content));
  if (html === null) return <div style={{ color: theme.colors.text.secondary }}>HTML text is not drawn</div>;
  return <div className="markdown-html" style={{ padding: 8, overflow: 'hidden', height: '100%' }} dangerouslySetInnerHTML={{ __html: html }} />;
}

/** The panel types that are drawn. Others still run their queries, so that the list of empty panels is whole. */
export const bodies = {
  timeseries: Series, stat: Stat, table: DataTable, gauge: Gauges, bargauge: BarGauges,
  'state-timeline': StateTimeline, 'status-history': StateTimeline, text: Text,
};
