// Template variables: their values, and putting them into queries and titles as Grafana does.
import { escapeRegExp } from 'lodash';
import { prom } from './prometheus.js';

const ALL = '$__all';
const REFERENCE = /\$(\w+)|\[\[(\w+?)(?::(\w+))?\]\]|\$\{(\w+)(?:\.([^:}]+))?(?::([^}]+))?\}/g;

// A value inside a PromQL string that is a regular expression: escaped once for RE2, once for the string.
const regexEscape = (v) => String(v).replace(/\\/g, '\\\\\\\\').replace(/[$^*{}[\]'+?.()|]/g, '\\\\$&');
const stringEscape = (v) => String(v).replace(/\\/g, '\\\\').replace(/'/g, "\\'");

const formats = {
  raw: (vs) => vs.join(','),
  csv: (vs) => vs.join(','),
  pipe: (vs) => vs.join('|'),
  regex: (vs) => (vs.length > 1 ? `(${vs.map(escapeRegExp).join('|')})` : escapeRegExp(vs[0] ?? '')),
  json: (vs) => JSON.stringify(vs),
  doublequote: (vs) => vs.map((v) => `"${v}"`).join(','),
  singlequote: (vs) => vs.map((v) => `'${v}'`).join(','),
};

// The form a variable takes in a query when it names no format of its own.
function queryForm(v) {
  if (v.all && v.allValue) return v.allValue;
  if (!v.multi && !v.includeAll) return stringEscape(v.values[0] ?? '');
  const escaped = v.values.map(regexEscape);
  return escaped.length > 1 ? `(${escaped.join('|')})` : (escaped[0] ?? '');
}

/** Replaces variables in text. Names that are not known stay as they are and are added to `unknown`. */
export function interpolate(text, vars, { forQuery = false, unknown } = {}) {
  return String(text ?? '').replace(REFERENCE, (ref, a, b, bFormat, c, _path, cFormat) => {
    const v = vars[a || b || c];
    const format = bFormat || cFormat;
    if (v === undefined) {
      if (!/^\d+$/.test(a || b || c)) unknown?.add(a || b || c); // $1 is of label_replace
      return ref;
    }
    if (typeof v === 'string') return v;
    if (format === 'text' || (!format && !forQuery)) return v.text;
    if (format) return v.all && v.allValue ? v.allValue : (formats[format] || formats.raw)(v.values);
    return queryForm(v);
  });
}

async function queryOptions(query, range) {
  let m = /^\s*label_values\(\s*(?:(.+),\s*)?([a-zA-Z_]\w*)\s*\)\s*$/s.exec(query);
  const times = { start: range.from / 1e3, end: range.to / 1e3 };
  if (m) return prom(`label/${m[2]}/values`, m[1] ? { 'match[]': m[1], ...times } : times);
  if (/^\s*label_names\(/.test(query)) return prom('labels', times);
  m = /^\s*metrics\((.*)\)\s*$/.exec(query);
  if (m) return (await prom('label/__name__/values', times)).filter((n) => new RegExp(m[1]).test(n));
  m = /^\s*query_result\((.+)\)\s*$/s.exec(query);
  const { result } = await prom('query', { query: m ? m[1] : query, time: times.end });
  return result.map(({ metric: { __name__ = '', ...labels }, value }) =>
    `${__name__}{${Object.entries(labels).map(([k, v]) => `${k}="${v}"`).join(',')}} ${value[1]} ${value[0] * 1e3}`);
}

function filtered(options, regex) {
  const m = /^\/(.*)\/(\w*)$/s.exec(regex || '');
  if (!regex) return options;
  const re = m ? new RegExp(m[1], m[2].replace('g', '')) : new RegExp(regex);
  return [...new Set(options.map((o) => re.exec(o)).filter(Boolean).map((r) => r.groups?.value ?? r[1] ?? r[0]))];
}

function sorted(options, sort) {
  const by = { 1: (a, b) => (a < b ? -1 : 1), 3: (a, b) => parseFloat(a.match(/\d+/)) - parseFloat(b.match(/\d+/)) };
  by[5] = by[7] = (a, b) => a.localeCompare(b, undefined, { numeric: true, sensitivity: 'base' });
  const odd = by[sort] || by[sort - 1];
  if (!odd) return options;
  const out = [...options].sort(odd);
  return by[sort] ? out : out.reverse();
}

// "a, b : c" of a custom variable, as [value, value]; "text : value" keeps the value.
const customOptions = (q) => String(q || '').split(/(?<!\\),/).map((s) => s.trim().replace(/\\,/g, ',')).filter(Boolean)
  .map((s) => /^.+\s:\s(.+)$/.exec(s)?.[1] ?? s);

function chosenValues(model, options, asked) {
  const wanted = asked ?? [model.current?.value ?? []].flat().filter((v) => v !== '' && v !== null);
  if (wanted.some((v) => v === ALL || v === 'All')) return ALL;
  if (asked) return asked;
  const known = options.length ? wanted.filter((v) => options.includes(v)) : wanted;
  if (known.length) return known;
  return model.includeAll ? ALL : options.slice(0, 1);
}

/**
 * Resolves the dashboard's variables in their order, so that a later query can use an earlier variable.
 * asked maps a name to the values given on the command line. Faults go to notes, one line each.
 */
export async function resolveVariables(list, asked, range, notes) {
  const vars = {};
  for (const model of list) {
    let options = [];
    try {
      if (model.type === 'query') {
        const query = interpolate(typeof model.query === 'string' ? model.query : model.query?.query ?? model.definition, vars, { forQuery: true });
        options = sorted(filtered(await queryOptions(query, range), model.regex), model.sort);
        if (!options.length) notes.push(`variable ${model.name}: no values from ${query}`);
      } else if (model.type === 'custom' || model.type === 'interval') options = customOptions(model.query);
      else if (model.type === 'constant' || model.type === 'textbox') options = [model.current?.value ?? model.query ?? ''].flat();
      else if (model.type === 'datasource') options = ['default'];
      else notes.push(`variable ${model.name}: type ${model.type} is not supported`);
    } catch (e) {
      notes.push(`variable ${model.name}: ${e.message}`);
    }
    const choice = model.type === 'datasource' ? ['default'] : chosenValues(model, options, asked[model.name]);
    const all = choice === ALL;
    if (!all && asked[model.name] && model.type === 'query')
      for (const v of choice) if (!options.includes(v)) notes.push(`variable ${model.name}: ${v} is not among its ${options.length} values`);
    const values = all ? options : choice;
    vars[model.name] = {
      values, all, allValue: model.allValue, multi: model.multi, includeAll: model.includeAll, count: options.length,
      text: all ? 'All' : values.join(' + '), label: model.label || model.name, hide: model.hide === 2,
    };
  }
  for (const name of Object.keys(asked)) if (!vars[name]) notes.push(`variable ${name}: the dashboard has none of this name`);
  return vars;
}
