package dashboards

import (
	"slices"
	"strconv"

	"gdr_exporter/collector/diagnosis"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// state is what a value means, and its colour if it has one.
type state struct {
	value, text, colour string
}

// mapped is a mapping of values to texts, in this order.
func mapped(states ...state) []dashboard.ValueMapping {
	options := map[string]dashboard.ValueMappingResult{}
	for i, s := range states {
		result := dashboard.ValueMappingResult{Text: cog.ToPtr(s.text), Index: cog.ToPtr(int32(i))} //nolint:gosec // a few dozen
		if s.colour != "" {
			result.Color = cog.ToPtr(s.colour)
		}
		options[s.value] = result
	}
	return []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: options}}}
}

// Where a cell of the matrix is a verdict rather than a distance, it is above this.
const verdictCodes = 100

// grey is of what is neither good nor bad.
const (
	grey = "#4a4a4a"
	dark = "#333333"
)

// verdicts are the states of a pair, by the codes that pairCodes gives them.
var verdicts = []state{
	{strconv.Itoa(verdictCodes + 1), "direct", "green"},
	{strconv.Itoa(verdictCodes + 2), "degraded", "orange"},
	{strconv.Itoa(verdictCodes + 3), "staged", "red"},
	{strconv.Itoa(verdictCodes + 4), "unsupported", "purple"},
	{strconv.Itoa(verdictCodes + 5), "unknown", "blue"},
}

// distances are the kernel's tree as gdr_affinity_distance_id counts it.
var distances = []state{
	{"0", "?", dark}, {"1", "PIX", dark}, {"2", "PXB", dark}, {"3", "P2C", dark}, {"4", "PHB", dark}, {"5", "NODE", dark}, {"6", "SYS", dark},
}

var (
	pairStates = mapped(slices.Concat(verdicts, distances)...)
	portStates = mapped(
		state{"0", "NOP", grey}, state{"1", "DOWN", "red"}, state{"2", "INIT", "orange"}, state{"3", "ARMED", "yellow"},
		state{"4", "ACTIVE", "green"}, state{"5", "ACTIVE_DEFER", "orange"},
	)
	physicalStates = mapped(
		state{"1", "Sleep", grey}, state{"2", "Polling", "red"}, state{"3", "Disabled", grey}, state{"4", "Training", "orange"},
		state{"5", "LinkUp", "green"}, state{"6", "ErrorRecovery", "orange"}, state{"7", "Phy Test", grey},
	)
	fabricStates = mapped(
		state{"0", "not supported", grey}, state{"1", "not started", "orange"}, state{"2", "in progress", "orange"}, state{"3", "completed", "green"},
	)
	fabricHealth    = mapped(state{"1", "healthy", "green"}, state{"2", "unhealthy", "red"}, state{"3", "limited capacity", "orange"})
	recoveryActions = mapped(
		state{"0", "nothing", "green"}, state{"1", "reset the GPU", "red"}, state{"2", "reboot", "red"}, state{"3", "drain P2P", "orange"},
		state{"4", "drain and reset", "red"}, state{"5", "recover IMEX", "orange"}, state{"6", "reset the bus", "red"}, state{"7", "reboot the system", "red"},
	)
	computeModes = mapped(
		state{"0", "default", ""}, state{"1", "exclusive thread", "orange"}, state{"2", "prohibited", "orange"}, state{"3", "exclusive process", "orange"},
	)
	powerStates = mapped(
		state{"0", "D0", ""}, state{"1", "D1", ""}, state{"2", "D2", ""}, state{"3", "D3hot", ""}, state{"4", "D3cold", ""},
		state{"5", "no driver", ""}, state{"6", "does not answer", "red"},
	)
	yesWarn  = mapped(state{"1", "yes", "orange"}, state{"0", "no", "green"})
	yesBad   = mapped(state{"1", "yes", "red"}, state{"0", "no", "green"})
	yesPlain = mapped(state{"1", "yes", ""}, state{"0", "no", ""})

	severities = mapped(state{"critical", "critical", "red"}, state{"warning", "warning", "orange"}, state{"info", "info", "blue"})
	meanings   = ofRules(func(r *diagnosis.Rule) string { return r.Title })
	remedies   = ofRules(func(r *diagnosis.Rule) string { return r.Hint })
)

// ofRules maps each rule of the diagnosis to what it says.
func ofRules(text func(*diagnosis.Rule) string) []dashboard.ValueMapping {
	rules := diagnosis.Rules()
	all := make([]state, len(rules))
	for i := range rules {
		all[i] = state{value: rules[i].ID, text: text(&rules[i])}
	}
	return mapped(all...)
}
