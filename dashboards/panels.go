package dashboards

import (
	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// spec is what panels of all kinds have.
type spec struct {
	title, description string
	w, h               uint32 // of the grid: 24 columns, rows of 38 pixels
	unit               string
	decimals           *float64
	queries            []query
	thresholds         []dashboard.Threshold
	mappings           []dashboard.ValueMapping
	noValue            string // in place of "No data", where no series is good news
}

func (s *spec) base() *spec { return s }

// query is a query of a panel: PromQL with @NAME for a selector, and the series' name.
type query struct {
	expr, legend string
	// colour is a fixed colour of the series; without one Grafana takes the next.
	colour string
	dashed bool
}

// level is where a colour begins; the first one has no lower end.
func level(value float64, colour string) dashboard.Threshold {
	return dashboard.Threshold{Value: cog.ToPtr(value), Color: colour}
}

// from returns thresholds: the first colour, and others from their values on. Panels name
// theirs, because Grafana would take red from 80.
func from(colour string, above ...dashboard.Threshold) []dashboard.Threshold {
	return append([]dashboard.Threshold{{Color: colour}}, above...)
}

// Thresholds that are used often.
var (
	plain     = from("text")
	zeroGood  = from("green", level(1, "red"))
	zeroWarn  = from("green", level(1, "orange"))
	fullShare = from("red", level(0.5, "orange"), level(1, "green"))
	// As the limits of the verdict: 0.6 far, 0.85 near (--probe.limit-far, --probe.limit).
	ratioLimits = from("red", level(0.6, "orange"), level(0.85, "green"))
	// As GDRPathRateLost and GDRPathDecline.
	baselineLimits = from("red", level(0.8, "orange"), level(0.9, "green"))
)

func (s *spec) steps() cog.Builder[dashboard.ThresholdsConfig] {
	steps := s.thresholds
	if steps == nil {
		steps = from("green")
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}

// finish puts in what builders of all kinds would be told in the same words.
func (s *spec) finish(b *board, p cog.Builder[dashboard.Panel], instant bool) (dashboard.Panel, error) {
	built, err := p.Build()
	if err != nil {
		return built, err
	}
	built.Title, built.Description = cog.ToPtr(s.title), cog.ToPtr(s.description)
	source := dataSource()
	built.Datasource = &source
	d := &built.FieldConfig.Defaults
	if s.unit != "" {
		d.Unit = cog.ToPtr(s.unit)
	}
	if s.noValue != "" {
		d.NoValue = cog.ToPtr(s.noValue)
	}
	d.Decimals, d.Mappings = s.decimals, s.mappings
	for i, q := range s.queries {
		target := prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Datasource(dataSource()).Expr(b.query(q.expr))
		if q.legend != "" {
			target = target.LegendFormat(q.legend)
		}
		if instant {
			target = target.Instant()
		} else {
			target = target.Range()
		}
		query, err := target.Build()
		if err != nil {
			return built, err
		}
		built.Targets = append(built.Targets, query)
	}
	return built, nil
}

// number is a value at the top of a dashboard, with its colour.
type number struct {
	spec
	// names shows the names of series rather than their values: of info series.
	names bool
	plain bool // without background
}

func (p *number) build(b *board) (dashboard.Panel, error) {
	mode, text := common.BigValueColorModeBackgroundSolid, common.BigValueTextModeAuto
	if p.plain || p.names {
		mode = common.BigValueColorModeNone
	}
	if p.names {
		text = common.BigValueTextModeName
	}
	builder := stat.NewPanelBuilder().GraphMode(common.BigValueGraphModeNone).ColorMode(mode).TextMode(text).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).Thresholds(p.steps())
	if p.names {
		builder = builder.Text(common.NewVizTextDisplayOptionsBuilder().TitleSize(22).ValueSize(22)) // versions are long
	}
	return p.finish(b, builder, true)
}

// graph is a panel of series over time.
type graph struct {
	spec
	stacked bool
	bars    bool
	minimum *float64
	maximum *float64
	limits  bool // draws the thresholds as lines
	few     bool // few series: the legend is a list
}

func (p *graph) build(b *board) (dashboard.Panel, error) {
	legend := common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
		Placement(common.LegendPlacementRight).Calcs([]string{"lastNotNull", "max"}).SortBy("Max").SortDesc(true)
	if p.few || p.w < columns/2 {
		legend = legend.DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).Calcs([]string{})
	}
	builder := timeseries.NewPanelBuilder().Legend(legend).Thresholds(p.steps()).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		LineWidth(1).FillOpacity(0).ShowPoints(common.VisibilityModeNever).AxisSoftMin(0)
	if top := p.softTop(); top > 0 {
		builder = builder.AxisSoftMax(top)
	}
	if p.stacked {
		builder = builder.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	if p.bars {
		builder = builder.DrawStyle(common.GraphDrawStyleBars).FillOpacity(70)
	}
	if p.limits {
		builder = builder.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	for i, q := range p.queries {
		if q.colour != "" || q.dashed {
			builder = builder.OverrideByQuery(string(rune('A'+i)), q.style())
		}
	}
	built, err := p.finish(b, builder, false)
	if err == nil {
		built.FieldConfig.Defaults.Min, built.FieldConfig.Defaults.Max = p.minimum, p.maximum
	}
	return built, err
}

// softTop is the least end of the axis: where all is 0, a limit is still seen, and there
// are no hundreds on the axis.
func (p *graph) softTop() float64 {
	switch {
	case p.limits:
		return 1.2 * *p.thresholds[len(p.thresholds)-1].Value
	case p.unit == "short":
		return 1
	case p.unit == "percentunit":
		return 0.01
	}
	return 0
}

func (q *query) style() []dashboard.DynamicConfigValue {
	var style []dashboard.DynamicConfigValue
	if q.colour != "" {
		style = append(style, dashboard.DynamicConfigValue{Id: "color", Value: map[string]any{"mode": "fixed", "fixedColor": q.colour}})
	}
	if q.dashed {
		style = append(style, dashboard.DynamicConfigValue{Id: "custom.lineStyle", Value: map[string]any{"fill": "dash", "dash": []int{8, 6}}})
	}
	return style
}

// timeline shows states over time, a row for each series.
type timeline struct{ spec }

func (p *timeline) build(b *board) (dashboard.Panel, error) {
	builder := statetimeline.NewPanelBuilder().ShowValue(common.VisibilityModeNever).RowHeight(0.8).MergeValues(true).FillOpacity(80).LineWidth(0).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).Calcs([]string{})).
		Thresholds(p.steps())
	return p.finish(b, builder, false)
}

// bars compares values of now.
type bars struct {
	spec
	maximum *float64
}

func (p *bars) build(b *board) (dashboard.Panel, error) {
	builder := bargauge.NewPanelBuilder().DisplayMode(common.BarGaugeDisplayModeBasic).Orientation(common.VizOrientationHorizontal).
		Text(common.NewVizTextDisplayOptionsBuilder().TitleSize(13).ValueSize(14)).
		ShowUnfilled(true).MinVizHeight(16).ValueMode(common.BarGaugeValueModeText).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).Thresholds(p.steps()).Min(0)
	built, err := p.finish(b, builder, true)
	if err == nil {
		built.FieldConfig.Defaults.Max = p.maximum
	}
	return built, err
}

// digits is a number that a field of the SDK takes: of decimals, or an end of an axis.
func digits(n float64) *float64 { return &n }

// whole is for values without decimals.
var whole = digits(0)

// withTexts adds the columns "what" and "remedy" to findings, which mappings fill.
func withTexts(expr string) string {
	return `label_replace(label_replace(` + expr + `, "what", "$1", "rule", "(.*)"), "remedy", "$1", "rule", "(.*)")`
}
