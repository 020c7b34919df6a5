package nccllog

import (
	"cmp"
	"slices"
)

// bounded is a table that takes only so many keys. What comes later is counted.
type bounded[K comparable, V any] struct {
	most    int
	rows    map[K]*V
	spill   V
	leftOut uint64 // accesses to keys that found no place
}

func newBounded[K comparable, V any](most int) *bounded[K, V] {
	return &bounded[K, V]{most: most, rows: map[K]*V{}}
}

// at returns the value of a key to change it; where the table is full, one that
// nobody reads.
func (b *bounded[K, V]) at(key K) *V {
	if row, found := b.rows[key]; found {
		return row
	}
	if len(b.rows) >= b.most {
		b.leftOut++
		var none V
		b.spill = none
		return &b.spill
	}
	row := new(V)
	b.rows[key] = row
	return row
}

// known returns the value of a key, or nil.
func (b *bounded[K, V]) known(key K) *V { return b.rows[key] }

// Tally is a text of the log with how often it was seen.
type Tally struct {
	Value string `json:"value"`
	Count uint64 `json:"count"`
	// Host is where it was seen first, "" where its line does not say.
	Host string `json:"host,omitempty"`
}

// tallies counts texts.
type tallies struct{ *bounded[string, Tally] }

func newTallies(most int) tallies { return tallies{newBounded[string, Tally](most)} }

func (t tallies) add(value, host string) {
	if value = clean(value); value == "" {
		return
	}
	row := t.at(value)
	row.Value = value
	row.Count++
	if row.Host == "" {
		row.Host = host
	}
}

// list is the table, the most frequent first.
func (t tallies) list() []Tally {
	list := []Tally{}
	for _, row := range t.rows {
		list = append(list, *row)
	}
	slices.SortFunc(list, func(a, b Tally) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value)) })
	return list
}
