package dashboards

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// runbookBase is where the alerts' runbook_url leads as well, see deploy/prometheus/README.md.
const runbookBase = "http://gdr-exporter:10479/runbooks"

type variable = cog.Builder[dashboard.VariableModel]

func dataSourceVariable() variable {
	return dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus").
		Description("A Prometheus that scrapes gdr_exporter and has its recording rules.")
}

// runbooksVariable is shown, because only a person knows the address that a browser reaches.
func runbooksVariable() variable {
	return dashboard.NewTextBoxVariableBuilder("runbooks").Label("Runbooks at").DefaultValue(dashboard.StringOrMap{String: cog.ToPtr(runbookBase)}).
		Description("Where links to runbooks lead: any exporter serves them at /runbooks.")
}

// one is a variable of which one value is chosen.
func one(name, label, query, description string) variable {
	return values(name, label, query, description)
}

// many is a variable of which all or some values are chosen. Its "All" is a regular
// expression, so that there is a value even where Prometheus has none.
func many(name, label, query, all, description string) variable {
	return values(name, label, query, description).Multi(true).IncludeAll(true).AllValue(all).
		Current(dashboard.VariableOption{
			Selected: cog.ToPtr(true),
			Text:     dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
			Value:    dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
		})
}

func values(name, label, query, description string) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).Label(label).Description(description).
		Datasource(dataSource()).Definition(query).
		Query(dashboard.StringOrMap{Map: map[string]any{"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 1}}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalCaseInsensitiveAsc)
}
