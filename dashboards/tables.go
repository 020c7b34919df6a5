package dashboards

import (
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	gtable "github.com/grafana/grafana-foundation-sdk/go/table"
)

// grid is a table: a row for each set of labels, which all its queries have, a column for
// each label and query. What is not among the columns is left out.
type grid struct {
	spec
	columns []column
	sort    string // title of a column
	tall    bool   // two lines of text in a row
	down    bool   // the largest first
}

// column is a column of a table: of a label, or of the query of that number.
type column struct {
	label    string
	query    int // from 0, where label is empty
	title    string
	unit     string
	decimals *float64
	width    int
	coloured []dashboard.Threshold // colours the cell
	mappings []dashboard.ValueMapping
	text     bool // the mappings are words, not states: no colours
	gauge    bool
	wrap     bool
	link     *link
}

// narrow is how narrow a column may get: by default Grafana makes them 150 pixels at least,
// and eight NICs do not fit into half a dashboard.
const narrow = 50

// nothing leaves the cells of what has no value without colour: they would have the first.
var nothing = dashboard.ValueMapping{SpecialValueMap: &dashboard.SpecialValueMap{Type: dashboard.MappingTypeSpecialValue, Options: dashboard.DashboardSpecialValueMapOptions{
	Match: dashboard.SpecialValueMatchNullAndNan, Result: dashboard.ValueMappingResult{Text: cog.ToPtr(""), Color: cog.ToPtr("transparent")},
}}}

// link is where a click on a cell leads.
type link struct{ title, url string }

// field is the name of the column's field in the data.
func (c *column) field(queries int) string {
	switch {
	case c.label != "":
		return c.label
	case queries == 1:
		return "Value"
	}
	return "Value #" + string(rune('A'+c.query))
}

func (p *grid) build(b *board) (dashboard.Panel, error) {
	if len(p.queries) == 1 { // the columns, and no other label
		p.queries[0].expr = "max by (" + strings.Join(p.labels(), ", ") + ") (" + p.queries[0].expr + ")"
	}
	p.order()
	builder := gtable.NewPanelBuilder().ShowHeader(true).CellHeight(common.TableCellHeightSm).Thresholds(p.steps()).Filterable(len(p.columns) <= 8 && p.w > columns/3).MinWidth(narrow)
	if p.tall {
		builder = builder.CellHeight(common.TableCellHeightLg)
	}
	if len(p.queries) > 1 {
		builder = builder.WithTransformation(dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}})
	}
	names, order := map[string]string{}, map[string]int{}
	for i := range p.columns {
		c := &p.columns[i]
		field := c.field(len(p.queries))
		names[field], order[field] = c.title, i
		if properties := c.properties(); len(properties) > 0 { // null is no list to Grafana
			builder = builder.OverrideByName(c.title, properties)
		}
	}
	builder = builder.WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{
		"excludeByName": p.excluded(), "indexByName": order, "renameByName": names,
	}})
	if p.sort != "" {
		builder = builder.SortBy([]cog.Builder[common.TableSortByFieldState]{
			common.NewTableSortByFieldStateBuilder().DisplayName(p.sort).Desc(p.down),
		})
	}
	return p.finishTable(b, builder)
}

// order has Prometheus sort what the table is sorted by, if it is the first query: rows
// come in its order where the table itself does not sort.
func (p *grid) order() {
	for i := range p.columns {
		if c := &p.columns[i]; c.title == p.sort && c.label == "" && c.query == 0 {
			sort := "sort"
			if p.down {
				sort = "sort_desc"
			}
			p.queries[0].expr = sort + "(" + p.queries[0].expr + ")"
		}
	}
}

// labels are those of the columns.
func (p *grid) labels() []string {
	var all []string
	for i := range p.columns {
		if label := p.columns[i].label; label != "" {
			all = append(all, label)
		}
	}
	return all
}

// excluded are fields of the data without a column: time, and values that say 1.
func (p *grid) excluded() map[string]bool {
	out := map[string]bool{"Time": true, "__name__": true}
	for i := range p.queries {
		out[(&column{query: i}).field(len(p.queries))] = true
	}
	for i := range p.columns {
		delete(out, p.columns[i].field(len(p.queries)))
	}
	return out
}

// finishTable makes the queries instant and their answers tables.
func (s *spec) finishTable(b *board, builder cog.Builder[dashboard.Panel]) (dashboard.Panel, error) {
	built, err := s.finish(b, builder, true)
	for i := range built.Targets {
		if q, is := built.Targets[i].(prometheus.Dataquery); is {
			q.Format = cog.ToPtr(prometheus.PromQueryFormatTable)
			built.Targets[i] = q
		}
	}
	return built, err
}

func (c *column) properties() []dashboard.DynamicConfigValue {
	var all []dashboard.DynamicConfigValue
	set := func(id string, value any) { all = append(all, dashboard.DynamicConfigValue{Id: id, Value: value}) }
	if c.unit != "" {
		set("unit", c.unit)
	}
	if c.decimals != nil {
		set("decimals", *c.decimals)
	}
	if c.width > 0 {
		set("custom.width", c.width)
	}
	if c.mappings != nil || c.coloured != nil {
		set("mappings", append(slices.Clone(c.mappings), nothing))
	}
	if c.coloured != nil {
		set("thresholds", map[string]any{"mode": "absolute", "steps": c.coloured})
	}
	switch {
	case c.gauge:
		set("custom.cellOptions", map[string]any{"type": "gauge", "mode": "basic", "valueDisplayMode": "text"})
		set("min", 0)
		set("max", 1)
	case c.wrap:
		set("custom.cellOptions", map[string]any{"type": "auto", "wrapText": true}) // up to Grafana 12
		set("custom.wrapText", true)
	case c.coloured != nil, c.mappings != nil && !c.text:
		set("custom.cellOptions", map[string]any{"type": "color-background", "mode": "basic"})
	}
	if c.link != nil {
		set("links", []map[string]any{{"title": c.link.title, "url": c.link.url, "targetBlank": false}})
	}
	return all
}

// matrix is a table of one query, with the values of one label as rows and of another as
// columns.
type matrix struct {
	spec
	rows, columns string // labels
	head          string // above the names of the rows
	first         int    // width of the names
}

func (p *matrix) build(b *board) (dashboard.Panel, error) {
	sorted := func(label string) dashboard.DataTransformerConfig {
		return dashboard.DataTransformerConfig{Id: "sortBy", Options: map[string]any{"sort": []map[string]any{{"field": label, "desc": false}}}}
	}
	// Mappings and colours are of the value columns only: as defaults they would recolour
	// the names of the rows as well.
	values := []dashboard.DynamicConfigValue{
		{Id: "custom.cellOptions", Value: map[string]any{"type": "color-background", "mode": "basic"}},
		{Id: "custom.align", Value: "center"},
		{Id: "custom.minWidth", Value: narrow},
		{Id: "mappings", Value: append(slices.Clone(p.mappings), nothing)},
	}
	head := p.rows + `\` + p.columns
	builder := gtable.NewPanelBuilder().ShowHeader(true).CellHeight(common.TableCellHeightSm).Thresholds(p.steps()).
		WithTransformation(sorted(p.columns)).WithTransformation(sorted(p.rows)).
		WithTransformation(dashboard.DataTransformerConfig{Id: "groupingToMatrix", Options: map[string]any{
			"rowField": p.rows, "columnField": p.columns, "valueField": "Value", "emptyValue": "null",
		}}).
		OverrideByRegexp(fmt.Sprintf(`/^(?!%s\\).+/`, p.rows), values).
		OverrideByName(head, []dashboard.DynamicConfigValue{{Id: "displayName", Value: p.head}, {Id: "custom.width", Value: p.first}})
	s := p.spec
	s.mappings = nil
	return s.finishTable(b, builder)
}
