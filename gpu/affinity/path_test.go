package affinity

import (
	"maps"
	"testing"

	"gdr_exporter/collector/sysread"
)

// pxb is a path with two bridges on either side: the upper one of each side is
// a switch's upstream port.
func pxb() (Pair, map[string]*Function) {
	full := Link{sysread.Some(32.), sysread.Some(16), sysread.Some(32.), sysread.Some(16), true}
	upper := full
	upper.Lower = false
	port := func(link Link) *Function { return &Function{Link: link, Config: Config{ACS: sysread.Some[uint16](0)}} }
	return Pair{GPU: "gpu", NIC: "nic", Distance: PXB, Common: "top", GPUSide: []string{"down1", "up1"}, NICSide: []string{"down2", "up2"}},
		map[string]*Function{
			"gpu": {Link: full}, "nic": {Link: full}, "down1": port(upper), "up1": port(full), "down2": port(upper), "up2": port(full), "top": port(full),
		}
}

// TestNarrowest: the lower ends count, and if one of them is not known the path
// is not.
func TestNarrowest(t *testing.T) {
	const fullRate, halfRate = 63015384615, 31507692307
	for name, test := range map[string]struct {
		change        func(p *Pair, f map[string]*Function)
		now, possible int64 // 0: unknown
	}{
		"all full":         {func(*Pair, map[string]*Function) {}, fullRate, fullRate},
		"GPU is narrow":    {func(_ *Pair, f map[string]*Function) { f["gpu"].Link.Width.Value = 8 }, halfRate, fullRate},
		"NIC is slow":      {func(_ *Pair, f map[string]*Function) { f["nic"].Link.Speed.Value = 16 }, halfRate, fullRate},
		"switch is narrow": {func(_ *Pair, f map[string]*Function) { f["up2"].Link.Width.Value = 8 }, halfRate, fullRate},
		"switch is made narrow": {func(_ *Pair, f map[string]*Function) {
			f["up1"].Link.Width.Value, f["up1"].Link.PossibleWidth.Value = 8, 8
		}, halfRate, halfRate},
		"the upper end is not asked": {func(_ *Pair, f map[string]*Function) { f["down1"].Link = Link{} }, fullRate, fullRate},
		"what is common neither":     {func(_ *Pair, f map[string]*Function) { delete(f, "top") }, fullRate, fullRate},
		"speed unknown":              {func(_ *Pair, f map[string]*Function) { f["up1"].Link.Speed.Known = false }, 0, fullRate},
		"possible unknown":           {func(_ *Pair, f map[string]*Function) { f["up1"].Link.PossibleWidth.Known = false }, fullRate, 0},
		"GPU unknown":                {func(_ *Pair, f map[string]*Function) { f["gpu"].Link.Width.Known = false }, 0, fullRate},
		"a bridge hangs":             {func(_ *Pair, f map[string]*Function) { delete(f, "down2") }, 0, 0},
		"the GPU hangs":              {func(_ *Pair, f map[string]*Function) { delete(f, "gpu") }, 0, 0},
		"no NIC":                     {func(p *Pair, _ map[string]*Function) { p.NIC = "" }, 0, 0},
		"distance unknown":           {func(p *Pair, _ map[string]*Function) { p.Distance = Unknown }, 0, 0},
	} {
		pair, functions := pxb()
		test.change(&pair, functions)
		path := PathOf(&pair, functions)
		if int64(path.BytesPerSecond.Value) != test.now || path.BytesPerSecond.Known != (test.now != 0) ||
			int64(path.PossibleBytesPerSecond.Value) != test.possible || path.PossibleBytesPerSecond.Known != (test.possible != 0) {
			t.Errorf("%s: %+v", name, path)
		}
	}
}

// TestRedirected: known if all ports below the common bridge are, or one that
// redirects is.
func TestRedirected(t *testing.T) {
	set := func(f *Function, bits uint16) { f.Config.ACS = sysread.Some(bits) }
	yes, no, unknown := sysread.Some(true), sysread.Some(false), sysread.Maybe[bool]{}
	for name, test := range map[string]struct {
		change func(p *Pair, f map[string]*Function)
		want   sysread.Maybe[bool]
	}{
		"none":                  {func(*Pair, map[string]*Function) {}, no},
		"requests, NIC's port":  {func(_ *Pair, f map[string]*Function) { set(f["down2"], ACSRequestRedirect) }, yes},
		"completions, GPU's":    {func(_ *Pair, f map[string]*Function) { set(f["down1"], ACSCompletionRedirect) }, yes},
		"kernel's default":      {func(_ *Pair, f map[string]*Function) { set(f["up2"], 0x1d) }, yes},
		"other bits":            {func(_ *Pair, f map[string]*Function) { set(f["up2"], 0x73) }, no},
		"above the common":      {func(_ *Pair, f map[string]*Function) { set(f["top"], 0x1d) }, no},
		"no capability":         {func(_ *Pair, f map[string]*Function) { f["up1"].Config = Config{NoACS: true} }, no},
		"one unknown":           {func(_ *Pair, f map[string]*Function) { f["up1"].Config = Config{} }, unknown},
		"one hangs":             {func(_ *Pair, f map[string]*Function) { delete(f, "down2") }, unknown},
		"one unknown, one does": {func(_ *Pair, f map[string]*Function) { f["down1"].Config = Config{}; set(f["up2"], 0x1d) }, yes},
		"nothing in common":     {func(p *Pair, _ map[string]*Function) { p.Distance, p.Common = PHB, "" }, unknown},
		"functions of one port": {func(p *Pair, _ map[string]*Function) { p.GPUSide, p.NICSide = nil, nil }, unknown},
		"distance unknown":      {func(p *Pair, _ map[string]*Function) { p.Distance = Unknown }, unknown},
		"hypervisor's bridges":  {func(p *Pair, _ map[string]*Function) { p.Hidden = true }, unknown},
	} {
		pair, functions := pxb()
		test.change(&pair, functions)
		if got := PathOf(&pair, functions).Redirected; got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestTranslation(t *testing.T) {
	node := func(group, kind string) *Function { return &Function{Node: Node{IOMMUGroup: group, IOMMUType: kind}} }
	for _, test := range []struct {
		gpu, nic *Function
		want     IOMMU
	}{
		{node("", ""), node("", ""), IOMMUNone},
		{node("1", "identity"), node("2", "identity"), IOMMUPassthrough},
		{node("1", "identity"), node("", ""), IOMMUPassthrough},
		{node("1", "DMA"), node("2", "identity"), IOMMUTranslated},
		{node("1", "identity"), node("2", "DMA-FQ"), IOMMUTranslated},
		{node("1", "DMA"), node("2", ""), IOMMUTranslated},
		{node("1", ""), node("2", "identity"), IOMMUUnknown}, // kernels before 5.11
		{node("1", "unmanaged"), node("2", "identity"), IOMMUUnknown},
		{node("1", "blocked"), node("", ""), IOMMUUnknown},
		{nil, node("2", "DMA"), IOMMUUnknown},
		{node("1", "DMA"), nil, IOMMUUnknown},
	} {
		if got := translation(test.gpu, test.nic); got != test.want {
			t.Errorf("%+v, %+v: %s, want %s", test.gpu, test.nic, got, test.want)
		}
	}
}

func TestWithC2C(t *testing.T) {
	l := Listing{}
	for d := Unknown; d <= SYS; d++ {
		l.Pairs = append(l.Pairs, Pair{GPU: "grace", Distance: d}, Pair{GPU: "other", Distance: d})
	}
	changed := l.WithC2C(func(gpu string) bool { return gpu == "grace" })
	want := map[Distance]Distance{Unknown: Unknown, PIX: PIX, PXB: PXB, P2C: P2C, PHB: P2C, NODE: P2C, SYS: SYS}
	for i, pair := range changed.Pairs {
		old := l.Pairs[i].Distance
		if pair.GPU == "grace" && pair.Distance != want[old] || pair.GPU == "other" && pair.Distance != old {
			t.Errorf("%s: %v became %v", pair.GPU, old, pair.Distance)
		}
	}
	if l.Pairs[2*PHB].Distance != PHB {
		t.Error("the listing itself was changed")
	}
}

func TestDistanceNames(t *testing.T) {
	names := map[string]bool{}
	for d := Unknown; d <= SYS; d++ {
		names[d.String()] = d.Direct()
	}
	if !maps.Equal(names, map[string]bool{"unknown": false, "PIX": true, "PXB": true, "P2C": true, "PHB": false, "NODE": false, "SYS": false}) {
		t.Error(names)
	}
	if Distance(-1).String() != "unknown" || Distance(99).String() != "unknown" {
		t.Error("numbers that are no class")
	}
}
