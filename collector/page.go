package collector

import (
	"sort"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// family is a metric family: its name, help and type never change.
type family struct {
	name, help string
	kind       dto.MetricType
}

func gauge(name, help string) *family   { return newFamily(name, help, dto.MetricType_GAUGE) }
func counter(name, help string) *family { return newFamily(name, help, dto.MetricType_COUNTER) }

// declared holds every family with a fixed name, so that the names made from
// counter files can keep clear of them.
var declared = map[string]*family{}

func newFamily(name, help string, kind dto.MetricType) *family {
	f := &family{name, help, kind}
	declared[name] = f
	return f
}

// page is the metrics of one scrape.
//
// It makes the protocol's structures itself rather than going through a
// registry's Gather: with labels made once per port, and samples in blocks,
// that is a fifth of the processor time for the 800 samples of an 8-NIC node.
// What the registry would check at run time (unique series, one type per
// family, valid names) is checked in tests over all fixtures instead.
type page struct {
	families map[*family]*dto.MetricFamily
	block    []sample
}

// sample is a metric with room for the value it points to.
type sample struct {
	metric  dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

const blockSize = 128

func newPage() *page { return &page{families: map[*family]*dto.MetricFamily{}} }

// add adds a sample. Each family gets a series at most once per scrape.
func (p *page) add(f *family, value float64, labels labels) {
	mf := p.families[f]
	if mf == nil {
		mf = &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: &f.kind}
		p.families[f] = mf
	}
	if len(p.block) == 0 {
		p.block = make([]sample, blockSize)
	}
	s := &p.block[0]
	p.block = p.block[1:]
	s.value = value
	s.metric.Label = labels
	if f.kind == dto.MetricType_COUNTER {
		s.counter.Value = &s.value
		s.metric.Counter = &s.counter
	} else {
		s.gauge.Value = &s.value
		s.metric.Gauge = &s.gauge
	}
	mf.Metric = append(mf.Metric, &s.metric)
}

func (p *page) addBool(f *family, value bool, labels labels) {
	if value {
		p.add(f, 1, labels)
	} else {
		p.add(f, 0, labels)
	}
}

// gather returns the page's families in the order of their names.
func (p *page) gather() []*dto.MetricFamily {
	families := make([]*dto.MetricFamily, 0, len(p.families))
	for _, mf := range p.families {
		families = append(families, mf)
	}
	sortFamilies(families)
	return families
}

func sortFamilies(families []*dto.MetricFamily) {
	sort.Slice(families, func(i, j int) bool { return families[i].GetName() < families[j].GetName() })
}

// gathererFunc is a prometheus.Gatherer.
type gathererFunc func() ([]*dto.MetricFamily, error)

// Gather implements prometheus.Gatherer.
func (f gathererFunc) Gather() ([]*dto.MetricFamily, error) { return f() }

var _ prometheus.Gatherer = gathererFunc(nil)

// labels are label pairs in the order of their names; samples share them.
type labels []*dto.LabelPair

// pairs makes labels of names and values in turn. Characters that are not valid
// UTF-8 (a firmware may put anything into a text) are replaced.
func pairs(namesAndValues ...string) labels {
	n := len(namesAndValues) / 2
	l := make(labels, n)
	room := make([]dto.LabelPair, n)
	strs := make([]string, 2*n)
	for i := range n {
		strs[2*i], strs[2*i+1] = namesAndValues[2*i], printable(namesAndValues[2*i+1])
		room[i].Name, room[i].Value = &strs[2*i], &strs[2*i+1]
		l[i] = &room[i]
	}
	sort.Slice(l, func(i, j int) bool { return *l[i].Name < *l[j].Name })
	return l
}

// with returns the labels and one more.
func (l labels) with(name, value string) labels {
	added := pairs(name, value)[0]
	all := make(labels, 0, len(l)+1)
	i := 0
	for ; i < len(l) && l[i].GetName() < name; i++ {
		all = append(all, l[i])
	}
	all = append(all, added)
	return append(all, l[i:]...)
}
