// The page: reads the dashboard and the choices of the address line, draws all panels, leaves its findings in window.__report.
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import '@fontsource/roboto-mono/latin-400.css';
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { ThemeContext, createTheme, dateMath, dateTime, standardTransformers, standardTransformersRegistry, transformDataFrame } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { applyFieldConfig, onlyNaN } from './fields.js';
import { bodies } from './panels.jsx';
import { runTarget } from './prometheus.js';
import { interpolate, resolveVariables } from './variables.js';

const CELL = 38, GAP = 8; // Grafana's grid: 30 pixels a row and 8 between
const query = new URLSearchParams(location.search);
const scrapeInterval = query.get('scrape') || '15s';
const theme = createTheme({ colors: { mode: query.get('theme') || 'dark' } });
window.grafanaBootData = { user: { theme: theme.isDark ? 'dark' : 'light' }, settings: {}, navTree: [] };
const transformers = new Map(Object.values(standardTransformers).map((t) => [t.id, t]));
standardTransformersRegistry.setInit(() => [...transformers.values()].map((t) => ({ id: t.id, name: t.name, transformation: async () => t, editor: () => null })));

const report = (window.__report = { panels: [], notes: [], variables: [], expected: -1 });

function timeRange(from, to) {
  const parse = (s, up) => (/^\d+$/.test(s) ? dateTime(Number(s)) : dateMath.toDateTime(s, { roundUp: up }));
  const range = { from: parse(from, false), to: parse(to, true) };
  if (!range.from?.isValid() || !range.to?.isValid() || !range.from.isBefore(range.to)) throw new Error(`not a time range: ${from} to ${to}`);
  return { from: range.from.valueOf(), to: range.to.valueOf(), timeRange: { ...range, raw: { from, to } } };
}

// Rows that are collapsed in the file hold their panels themselves; they are drawn open, and what is below moves down.
function layout(panels) {
  const out = [];
  let shift = 0, below = 0;
  for (const p of panels.filter(Boolean)) {
    const pos = p.gridPos ? { ...p.gridPos, y: p.gridPos.y + shift } : { x: 0, y: below, w: 24, h: p.type === 'row' ? 1 : 8 };
    out.push({ ...p, gridPos: pos });
    below = Math.max(below, pos.y + pos.h);
    if (p.type !== 'row' || !p.panels?.length) continue;
    const top = Math.min(...p.panels.map((q) => q.gridPos.y)), height = Math.max(...p.panels.map((q) => q.gridPos.y + q.gridPos.h)) - top;
    for (const q of p.panels) out.push({ ...q, gridPos: { ...q.gridPos, y: q.gridPos.y - top + pos.y + 1 } });
    shift += height;
    below = Math.max(below, pos.y + 1 + height);
  }
  return out;
}

function transform(frames, panel, replace) {
  if (!panel.transformations?.length) return frames;
  for (const { id } of panel.transformations) if (!transformers.has(id)) report.notes.push(`panel "${panel.title}": unknown transformation ${id}`);
  return new Promise((resolve, reject) => transformDataFrame(panel.transformations, frames, { interpolate: replace }).subscribe({ next: resolve, error: reject }));
}

const isPrometheus = (t, panel) => ![t.datasource?.type, panel.datasource?.type].some((type) => type && type !== 'prometheus' && type !== 'mixed' && type !== 'datasource') && t.datasource?.uid !== '__expr__';

async function load(panel, vars, range, width, entry) {
  const replace = (s) => interpolate(s, vars);
  const own = panel.timeFrom ? timeRange(`now-${panel.timeFrom}`, 'now') : range;
  const targets = (panel.targets || []).filter((t) => !t.hide);
  if (panel.type !== 'text' && !targets.length) throw new Error('the panel has no query');
  const frames = [];
  for (const t of targets) {
    if (!isPrometheus(t, panel)) { report.notes.push(`panel "${panel.title}": ${t.refId} is not a Prometheus query`); continue; }
    if (!t.expr) throw new Error(`${t.refId}: the query is empty`);
    const r = await runTarget(t, panel, vars, own, width, scrapeInterval);
    entry.queries.push({ refId: t.refId, expr: r.expr, series: r.series });
    if (r.unknown.length) report.notes.push(`panel "${panel.title}": unknown variable ${r.unknown.map((n) => '$' + n).join(', ')} in ${t.refId}`);
    frames.push(...r.frames);
  }
  const done = await transform(frames, panel, replace);
  entry.nan = onlyNaN(done);
  entry.empty = panel.type !== 'text' && !done.some((f) => f.length);
  return { frames: applyFieldConfig(done, panel, theme), range: own };
}

// A fault while drawing belongs to its panel alone.
class Guard extends Component {
  state = {};
  static getDerivedStateFromError(error) { return { error }; }
  componentDidCatch(error) { this.props.entry.error = `drawing: ${error.message}`; }
  render() { return this.state.error ? <Fault text={`drawing: ${this.state.error.message}`} /> : this.props.children; }
}

const Fault = ({ text }) => (
  <div data-fault style={{ boxSizing: 'border-box', height: '100%', border: `2px solid ${theme.colors.error.border}`, background: theme.colors.error.transparent, color: theme.colors.error.text, padding: 8, overflow: 'hidden', whiteSpace: 'pre-wrap', overflowWrap: 'anywhere', fontFamily: theme.typography.fontFamilyMonospace, fontSize: 12 }}>{text}</div>
);
const Notice = ({ text, height }) => <div style={{ color: theme.colors.text.secondary, textAlign: 'center', paddingTop: Math.max(0, height / 2 - 10) }}>{text}</div>;

function Body({ panel, state, entry, width, height, replace }) {
  if (state.error) return <Fault text={state.error} />;
  const Draw = bodies[panel.type];
  if (!Draw) return <Notice height={height} text={`panel type ${panel.type} is not drawn (${entry.queries.reduce((n, q) => n + q.series, 0)} series)`} />;
  if (entry.empty) return <Notice height={height} text={panel.fieldConfig?.defaults?.noValue || 'No data'} />;
  if (entry.nan) return <Notice height={height} text="only NaN" />;
  return <Guard entry={entry}><Draw panel={panel} frames={state.frames} theme={theme} width={width} height={height} timeRange={state.range?.timeRange} replace={replace} /></Guard>;
}

function Panel({ panel, vars, range, cell, entry }) {
  const [state, setState] = useState();
  const { x, y, w, h } = panel.gridPos, width = w * cell - GAP, height = h * CELL - GAP;
  const replace = (s) => interpolate(s, vars);
  useEffect(() => {
    load(panel, vars, range, width - 16, entry)
      .catch((e) => { entry.error = e.message; return { error: e.message, frames: [] }; })
      .then((s) => { setState(s); entry.answered = true; });
  }, []);
  return (
    <div data-panel={panel.id ?? ''} data-title={panel.title} style={{ position: 'absolute', left: x * cell + 4, top: y * CELL + 48 }}>
      <PanelChrome title={replace(panel.title)} description={panel.description ? replace(panel.description) : undefined} width={width} height={height} padding={panel.type === 'table' ? 'none' : 'md'}
        displayMode={panel.transparent ? 'transparent' : 'default'}>
        {(innerWidth, innerHeight) => (state ? <Body panel={panel} state={state} entry={entry} width={innerWidth} height={innerHeight} replace={replace} /> : null)}
      </PanelChrome>
    </div>
  );
}

const Row = ({ panel, vars }) => (
  <div style={{ position: 'absolute', top: panel.gridPos.y * CELL + 54, left: 12, fontSize: 16, fontWeight: 500 }}>⌄ {interpolate(panel.title, vars)}</div>
);

function Header({ dashboard, vars, range }) {
  const box = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, padding: '2px 8px', whiteSpace: 'nowrap' };
  const clock = (t) => dateTime(t).format('YYYY-MM-DD HH:mm:ss');
  return (
    <div style={{ display: 'flex', gap: 12, alignItems: 'center', padding: '4px', fontSize: 14, height: 28, overflow: 'hidden' }}>
      <b style={{ flexShrink: 0, whiteSpace: 'nowrap' }}>{dashboard.title}</b>
      {Object.entries(vars).filter(([, v]) => !v.hide).map(([name, v]) => <span key={name} style={box}><span style={{ color: theme.colors.text.secondary }}>{v.label}</span> {v.text}</span>)}
      <span style={{ flex: 1 }} />
      {(dashboard.links || []).map((l, i) => <span key={i} style={{ ...box, color: theme.colors.text.link }}>{l.title || l.tags?.join(', ')}</span>)}
      <span style={box}>{clock(range.from)} to {clock(range.to)}</span>
    </div>
  );
}

function Dashboard({ dashboard, panels, vars, range }) {
  const cell = (document.documentElement.clientWidth - 16) / 24;
  const bottom = Math.max(4, ...panels.map((p) => p.gridPos.y + p.gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div data-dashboard style={{ background: theme.colors.background.canvas, color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily, position: 'relative', boxSizing: 'border-box', height: bottom * CELL + 60, padding: 8 }}>
        <Header dashboard={dashboard} vars={vars} range={range} />
        {panels.map((p, i) => (p.type === 'row' ? <Row key={i} panel={p} vars={vars} /> : <Panel key={i} panel={p} vars={vars} range={range} cell={cell} entry={report.panels.find((e) => e.index === i)} />))}
      </div>
    </ThemeContext.Provider>
  );
}

async function start() {
  const dashboard = await (await fetch('/dashboard.json')).json();
  const range = timeRange(query.get('from') || dashboard.time?.from || 'now-1h', query.get('to') || dashboard.time?.to || 'now');
  const asked = {};
  for (const [key, value] of query) if (key.startsWith('var-')) (asked[key.slice(4)] ||= []).push(value);
  const vars = await resolveVariables(dashboard.templating?.list || [], asked, range, report.notes);
  const panels = layout(dashboard.panels || []);
  panels.forEach((p, index) => {
    if (p.repeat) report.notes.push(`"${p.title}": repeat over ${p.repeat} is drawn once`);
    if (p.libraryPanel && !p.targets) report.notes.push(`"${p.title}": library panels are not loaded`);
    if (p.type !== 'row') report.panels.push({ index, id: p.id, title: interpolate(p.title, vars), type: p.type, drawn: p.type in bodies, queries: [] });
  });
  report.title = dashboard.title;
  report.range = [range.from, range.to];
  report.variables = Object.entries(vars).map(([name, v]) => ({ name, text: v.text, count: v.count }));
  report.annotations = (dashboard.annotations?.list || []).filter((a) => !a.builtIn && a.enable !== false).map((a) => a.name);
  report.expected = report.panels.length;
  createRoot(document.getElementById('root')).render(<Dashboard dashboard={dashboard} panels={panels} vars={vars} range={range} />);
}

start().catch((e) => { report.fatal = e.message; report.expected = 0; });
