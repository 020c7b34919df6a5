package rails

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// node are ports without labels, called mlx5_0 and so on.
func node(devices ...string) []Rail {
	var all []Rail
	for i, device := range devices {
		all = append(all, Rail{Device: device, Port: 1, LinkLayer: "InfiniBand", Order: i})
	}
	return all
}

func labelled(all []Rail, labels ...string) []Rail {
	for i := range all {
		all[i].Label = labels[i]
	}
	return all
}

func ethernet(all []Rail, which ...int) []Rail {
	for _, i := range which {
		all[i].LinkLayer = "Ethernet"
	}
	return all
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		name         string
		mine, theirs []Rail
		want         []Pair
	}{
		{"nothing", nil, nil, nil},
		{"one side without", node("a"), nil, nil},
		{"same names", node("mlx5_0", "mlx5_1"), node("mlx5_0", "mlx5_1"), []Pair{{0, 0, ByName}, {1, 1, ByName}}},
		{"same names, listed differently", node("mlx5_0", "mlx5_1"), node("mlx5_1", "mlx5_0"), []Pair{{0, 1, ByName}, {1, 0, ByName}}},
		{
			"labels before names", labelled(node("mlx5_0", "mlx5_1"), "r0", "r1"), labelled(node("mlx5_0", "mlx5_1"), "r1", "r0"),
			[]Pair{{0, 1, ByLabel}, {1, 0, ByLabel}},
		},
		{
			"one node has labels", labelled(node("mlx5_0", "mlx5_1"), "r0", "r1"), node("mlx5_0", "mlx5_1"),
			[]Pair{{0, 0, ByName}, {1, 1, ByName}},
		},
		{
			"labels that differ never pair", labelled(node("mlx5_0", "mlx5_1"), "r0", "r1"), labelled(node("mlx5_0", "mlx5_1"), "r0", "r2"),
			[]Pair{{0, 0, ByLabel}},
		},
		{
			"names that differ", node("ibp24s0", "ibp64s0"), node("mlx5_0", "mlx5_3"),
			[]Pair{{0, 0, ByOrder}, {1, 1, ByOrder}},
		},
		{
			"a management NIC between", ethernet(node("mlx5_0", "mlx5_1", "mlx5_2"), 1), node("ib0", "ib1"),
			[]Pair{{0, 0, ByOrder}, {2, 1, ByOrder}},
		},
		{
			"the order of switches, not of names",
			[]Rail{{Device: "ibp9s0", Port: 1, Order: 1}, {Device: "ibp16s0", Port: 1}}, []Rail{{Device: "mlx5_0", Port: 1}, {Device: "mlx5_1", Port: 1, Order: 1}},
			[]Pair{{0, 1, ByOrder}, {1, 0, ByOrder}},
		},
		{
			"two ports of a rail", labelled(node("a", "b", "c"), "r0", "r0", "r1"), labelled(node("d", "e", "f"), "r1", "r0", "r0"),
			[]Pair{{0, 1, ByLabel}, {1, 2, ByLabel}, {2, 0, ByLabel}},
		},
		{
			"more on one side", node("mlx5_0", "mlx5_1", "mlx5_2"), node("mlx5_0", "mlx5_2"),
			[]Pair{{0, 0, ByName}, {2, 1, ByName}},
		},
		{"link layers that differ", node("mlx5_0"), ethernet(node("mlx5_0"), 0), nil},
		{"a link layer unknown", node("mlx5_0"), []Rail{{Device: "mlx5_0", Port: 1}}, []Pair{{0, 0, ByName}}},
		{
			"ports of a device", []Rail{{Device: "a", Port: 1}, {Device: "a", Port: 2, Order: 1}}, []Rail{{Device: "a", Port: 2}, {Device: "a", Port: 1, Order: 1}},
			[]Pair{{0, 1, ByName}, {1, 0, ByName}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Match(c.mine, c.theirs); !slices.Equal(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

// someNode is drawn by chance; names within it are unique, as a kernel's are.
func someNode(chance *rand.Rand) []Rail {
	var all []Rail
	for i := range chance.IntN(9) {
		all = append(all, Rail{
			Device:    fmt.Sprintf("%s%d", []string{"mlx5_", "ib"}[chance.IntN(2)], i),
			Port:      1,
			Label:     []string{"", "", "r0", "r1", "r2"}[chance.IntN(5)],
			LinkLayer: []string{"", "InfiniBand", "Ethernet"}[chance.IntN(3)],
			Order:     chance.IntN(4),
		})
	}
	chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// TestBothSidesAgree: whatever two nodes have, both find the same pairs, none with a
// port twice, none that cannot be, and all pairs are among [All].
func TestBothSidesAgree(t *testing.T) {
	chance := rand.New(rand.NewPCG(11, 12))
	for range 20000 {
		mine, theirs := someNode(chance), someNode(chance)
		here, there := Match(mine, theirs), Match(theirs, mine)
		for i := range there {
			there[i].Mine, there[i].Theirs = there[i].Theirs, there[i].Mine
		}
		slices.SortFunc(there, func(a, b Pair) int { return a.Mine - b.Mine })
		if !slices.Equal(here, there) {
			t.Fatalf("%+v\n%+v\nhere  %v\nthere %v", mine, theirs, here, there)
		}
		all := All(mine, theirs)
		seen := map[int]bool{}
		for _, p := range here {
			if seen[p.Theirs] {
				t.Fatalf("%+v\n%+v\n%v: a port twice", mine, theirs, here)
			}
			seen[p.Theirs] = true
			if contradict(mine[p.Mine], theirs[p.Theirs]) || !slices.Contains(all, Pair{p.Mine, p.Theirs, ByAll}) {
				t.Fatalf("%+v\n%+v\n%v cannot be", mine, theirs, p)
			}
		}
	}
}

func TestAll(t *testing.T) {
	got := All(ethernet(node("a", "b"), 1), ethernet(node("c", "d", "e"), 2))
	want := []Pair{{0, 0, ByAll}, {0, 1, ByAll}, {1, 2, ByAll}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
