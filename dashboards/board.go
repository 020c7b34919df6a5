package dashboards

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// The dashboards' identifiers, which links name and which never change.
const (
	uidFleet  = "gdr-fleet"
	uidNode   = "gdr-node"
	uidFabric = "gdr-rdma-fabric"
)

const (
	tag     = "gdr"
	columns = 24 // of Grafana's grid
	colour  = "light-orange"
)

// board is a dashboard as it is written down here: rows of panels, from left to right.
type board struct {
	uid, title, description string
	from                    string // default time range, such as now-6h
	variables               []cog.Builder[dashboard.VariableModel]
	annotations             []annotation
	// selectors are what stands for @NAME in the queries: {@node} is the selector of a node.
	selectors map[string]string
	rows      []row
}

// row is a titled part of a dashboard.
type row struct {
	title  string
	panels []panel
}

// panel is a panel of any kind.
type panel interface {
	base() *spec
	build(b *board) (dashboard.Panel, error)
}

// annotation marks what happened in all panels with time.
type annotation struct {
	name, colour, expr, title, text string
	off                             bool // until somebody switches it on
}

func (b *board) build() (dashboard.Dashboard, error) { //nolint:staticcheck // the classic form, which all Grafanas load, on purpose
	builder := dashboard.NewDashboardBuilder(b.title). //nolint:staticcheck // as above
								Uid(b.uid).Description(b.description).Tags([]string{tag, "rdma", "gpu"}).
								Readonly().Tooltip(dashboard.DashboardCursorSyncCrosshair).
								Time(b.from, "now").Timezone(common.TimeZoneBrowser).Refresh("1m").
								Variables(b.variables).
								Link(dashboard.NewDashboardLinkBuilder("GDR dashboards").Type(dashboard.DashboardLinkTypeDashboards).
									Tags([]string{tag}).AsDropdown(false).IncludeVars(true).KeepTime(true)).
								Link(dashboard.NewDashboardLinkBuilder("Runbooks").Type(dashboard.DashboardLinkTypeLink).Icon("doc").
									Tooltip("What to do about each alert and finding").Url("${runbooks}/").TargetBlank(true))
	for _, a := range b.annotations {
		builder = builder.Annotation(a.build(b))
	}
	model, err := builder.Build()
	if err != nil {
		return model, err
	}
	if model.Panels, err = b.place(); err != nil {
		return model, err
	}
	// The SDK would hide both in a menu that Grafana has from 12 on.
	for i := range model.Links {
		model.Links[i].Placement = nil
	}
	for i := range model.Annotations.List {
		model.Annotations.List[i].Placement = nil
	}
	return model, nil
}

func (a annotation) build(b *board) cog.Builder[dashboard.AnnotationQuery] {
	return dashboard.NewAnnotationQueryBuilder().Name(a.name).Datasource(dataSource()).Enable(!a.off).IconColor(a.colour).
		Expr(b.query(a.expr)).TitleFormat(a.title).TextFormat(a.text).
		Target(prometheus.NewDataqueryBuilder().RefId("Anno").Expr(b.query(a.expr)))
}

// place numbers the panels and lays them out. Numbers begin with that of the row, so that
// a new panel does not change those of other rows, which links may name.
func (b *board) place() ([]dashboard.PanelOrRowPanel, error) {
	var all []dashboard.PanelOrRowPanel
	y := uint32(0)
	for i, r := range b.rows {
		id := uint32(100 * (i + 1)) //nolint:gosec // a dozen rows
		head, err := dashboard.NewRowBuilder(r.title).Id(id).GridPos(dashboard.GridPos{Y: y, H: 1, W: columns}).Build()
		if err != nil {
			return nil, err
		}
		all = append(all, dashboard.PanelOrRowPanel{RowPanel: &head})
		y++
		x, height := uint32(0), uint32(0)
		for _, p := range r.panels {
			s := p.base()
			if x+s.w > columns {
				x, y, height = 0, y+height, 0
			}
			built, err := p.build(b)
			if err != nil {
				return nil, err
			}
			id++
			number := id
			built.Id, built.GridPos = &number, &dashboard.GridPos{X: x, Y: y, W: s.w, H: s.h}
			all = append(all, dashboard.PanelOrRowPanel{Panel: &built})
			x, height = x+s.w, max(height, s.h)
		}
		y += height
	}
	return all, nil
}

// query puts the selectors into a query, and all of it on one line.
func (b *board) query(expr string) string {
	var pairs []string
	for name, selector := range b.selectors {
		pairs = append(pairs, "@"+name, selector)
	}
	return strings.Join(strings.Fields(strings.NewReplacer(pairs...).Replace(expr)), " ")
}

func dataSource() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}
