package collector

import (
	"encoding/binary"
	"sort"
	"sync"

	dto "github.com/prometheus/client_model/go"
)

// labels are label pairs in the order of their names; samples share them.
type labels []*dto.LabelPair

// pairs returns labels of names and values in turn. Values are made printable: a
// driver may put anything into a text. They are kept from scrape to scrape, for
// most are the same each time.
func pairs(namesAndValues ...string) labels { return kept.pairs(namesAndValues) }

// with returns the labels, which must come from pairs or with, and one more.
func (l labels) with(name, value string) labels { return kept.with(l, name, value) }

// makePairs makes labels of names and values in turn.
func makePairs(namesAndValues []string) labels {
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

// and returns the labels and one more.
func (l labels) and(name, value string) labels {
	added := makePairs([]string{name, value})[0]
	all := make(labels, 0, len(l)+1)
	i := 0
	for ; i < len(l) && l[i].GetName() < name; i++ {
		all = append(all, l[i])
	}
	all = append(all, added)
	return append(all, l[i:]...)
}

// kept are the labels of all views.
var kept keptLabels

// keptLabels keeps labels by what they say, so that a series has the same ones
// each time: making those of a GPU's facts anew costs more than all else about it.
// Of what changes all the time it keeps no more than maxKeptLabels.
type keptLabels struct {
	mu   sync.Mutex
	all  map[string]labels
	more map[keptKey]labels
}

// keptKey is a set and one more label. A set is known by its array: others may
// begin with the same label.
type keptKey struct {
	base        **dto.LabelPair
	name, value string
}

// maxKeptLabels bounds keptLabels; past it they start afresh. A node with eight
// GPUs and NICs has some 800.
const maxKeptLabels = 1 << 13

func (k *keptLabels) pairs(namesAndValues []string) labels {
	var room [512]byte
	key := room[:0]
	for _, text := range namesAndValues {
		key = binary.AppendUvarint(key, uint64(len(text)))
		key = append(key, text...)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, found := k.all[string(key)]; found {
		return l
	}
	l := makePairs(namesAndValues)
	k.room()
	k.all[string(key)] = l
	return l
}

func (k *keptLabels) with(base labels, name, value string) labels {
	if len(base) == 0 {
		return k.pairs([]string{name, value})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	key := keptKey{&base[0], name, value}
	if l, found := k.more[key]; found {
		return l
	}
	l := base.and(name, value)
	k.room()
	k.more[key] = l
	return l
}

// room makes room for one more.
func (k *keptLabels) room() {
	if k.all == nil || len(k.all)+len(k.more) >= maxKeptLabels {
		k.all, k.more = map[string]labels{}, map[keptKey]labels{}
	}
}

// maxCachedLabels bounds a labelCache; past it the cache starts afresh.
const maxCachedLabels = 1 << 14

// labelCache keeps the labels of devices and ports from scrape to scrape.
type labelCache struct {
	mu    sync.Mutex
	bases map[[2]string]labels
	more  map[labelKey]labels
}

type labelKey struct {
	base        *dto.LabelPair
	name, value string
}

// of returns the labels device and port, or device alone where port is "".
func (c *labelCache) of(device, port string) labels {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{device, port}
	if l, found := c.bases[key]; found {
		return l
	}
	if c.bases == nil || len(c.bases)+len(c.more) > maxCachedLabels {
		c.bases, c.more = map[[2]string]labels{}, map[labelKey]labels{}
	}
	l := makePairs([]string{"device", device})
	if port != "" {
		l = makePairs([]string{"device", device, "port", port})
	}
	c.bases[key] = l
	return l
}

// with2 returns base, which must come from of, and two more labels, the first of
// which must be named before the second.
func (c *labelCache) with2(base labels, name, value, name2, value2 string) labels {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := labelKey{base[0], name + "," + name2, value + "," + value2}
	if l, found := c.more[key]; found {
		return l
	}
	l := base.and(name, value).and(name2, value2)
	if len(c.more) < maxCachedLabels {
		c.more[key] = l
	}
	return l
}

// with returns base, which must come from of, and one more label.
func (c *labelCache) with(base labels, name, value string) labels {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := labelKey{base[0], name, value}
	if l, found := c.more[key]; found {
		return l
	}
	l := base.and(name, value)
	if len(c.more) < maxCachedLabels {
		c.more[key] = l
	}
	return l
}
