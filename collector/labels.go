package collector

import (
	"sort"
	"sync"

	dto "github.com/prometheus/client_model/go"
)

// labels are label pairs in the order of their names; samples share them.
type labels []*dto.LabelPair

// pairs makes labels of names and values in turn. Values are made printable: a
// driver may put anything into a text.
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
	l := pairs("device", device)
	if port != "" {
		l = pairs("device", device, "port", port)
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
	l := base.with(name, value).with(name2, value2)
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
	l := base.with(name, value)
	if len(c.more) < maxCachedLabels {
		c.more[key] = l
	}
	return l
}
