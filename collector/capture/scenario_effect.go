package capture

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// counted returns a file's answer with a count's number grown.
func (c *Count) counted(a *FileAnswer, at float64) *FileAnswer {
	text, whole := a.whole()
	if !whole || a.Errno != "" || a.Hang {
		return a
	}
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		name, number, found := strings.Cut(strings.TrimSpace(line), " ")
		if c.Field == "" {
			name, number, found = "", name, !found && len(lines) <= 2
		}
		if !found || name != c.Field {
			continue
		}
		value, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		if err != nil {
			return a
		}
		end := line[len(strings.TrimRight(line, "\n")):]
		lines[i] = strings.TrimSpace(name+" "+strconv.FormatUint(c.value(value, at), 10)) + end
		return textFile(strings.Join(lines, ""))
	}
	return a
}

// textFile is the answer of a file that was read as a whole.
func textFile(text string) *FileAnswer {
	a := &FileAnswer{Size: int64(len(text))}
	if text != "" {
		a.Data = []Segment{{Bytes: []byte(text)}}
	}
	return a
}

// countedValue returns an answer with a count's number grown.
func (c *Count) countedValue(v *Value, at float64) *Value {
	if len(v.JSON) == 0 {
		return v
	}
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(v.JSON))
	decoder.UseNumber() // counters have more digits than a float64
	if decoder.Decode(&tree) != nil {
		return v
	}
	var way []string
	if c.Field != "" {
		way = strings.Split(c.Field, ".")
	}
	grown, changed := c.grow(tree, way, at)
	if !changed {
		return v
	}
	text, err := json.Marshal(grown)
	if err != nil {
		return v
	}
	return &Value{JSON: text}
}

// grow returns a JSON value with the number at the end of the way grown.
func (c *Count) grow(tree any, way []string, at float64) (grown any, changed bool) {
	if len(way) == 0 {
		number, is := tree.(json.Number)
		value, err := strconv.ParseUint(string(number), 10, 64)
		if !is || err != nil {
			return tree, false
		}
		return json.Number(strconv.FormatUint(c.value(value, at), 10)), true
	}
	switch tree := tree.(type) {
	case map[string]any:
		below, found := tree[way[0]]
		if !found {
			return tree, false
		}
		tree[way[0]], changed = c.grow(below, way[1:], at)
	case []any:
		i := memberAt(tree, way[0])
		if i < 0 || i >= len(tree) {
			return tree, false
		}
		tree[i], changed = c.grow(tree[i], way[1:], at)
	}
	return tree, changed
}

// memberAt finds a member of a list, by its index or by its name; -1: there is none.
func memberAt(list []any, step string) int {
	name, byName := strings.CutPrefix(step, "name=")
	if !byName {
		if i, err := strconv.ParseUint(step, 10, 31); err == nil {
			return int(i)
		}
		return -1
	}
	return slices.IndexFunc(list, func(member any) bool {
		object, is := member.(map[string]any)
		return is && object["name"] == any(name)
	})
}
