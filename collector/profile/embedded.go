package profile

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sync"
)

// Profile is what a usual platform has, and by what it is known.
type Profile struct {
	Name  string `yaml:"name"`
	Match Rule   `yaml:"match"`
	Want  `yaml:",inline"`
	// Sources say of each number where it is from.
	Sources map[Field]string `yaml:"sources"`
}

// Rule is by what a platform is known: regular expressions of a whole text; ""
// matches any.
type Rule struct {
	Vendor  string `yaml:"vendor"`  // /sys/class/dmi/id/sys_vendor
	Product string `yaml:"product"` // /sys/class/dmi/id/product_name
	GPU     string `yaml:"gpu"`     // the name that NVML gives each of the GPUs
	// BareMetal: NVML must say that the GPUs are not in a virtual machine, which may
	// have some of a board's GPUs.
	BareMetal bool `yaml:"bare_metal"`

	vendor, product, gpu *regexp.Regexp
}

//go:embed profiles/*.yaml
var files embed.FS

// Embedded are the profiles of usual platforms, in the order of their names.
var Embedded = sync.OnceValue(func() []*Profile {
	profiles, err := embedded()
	if err != nil {
		panic(err) // a test reads them all: what is built in is right
	}
	return profiles
})

func embedded() ([]*Profile, error) {
	const dir = "profiles"
	entries, err := files.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var profiles []*Profile
	for _, entry := range entries {
		text, err := files.ReadFile(path.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		found, err := parseProfiles(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		profiles = append(profiles, found...)
	}
	slices.SortFunc(profiles, func(a, b *Profile) int { return compare(a.Name, b.Name) })
	return profiles, nil
}

func parseProfiles(text []byte) ([]*Profile, error) {
	var file struct {
		Profiles []*Profile `yaml:"profiles"`
	}
	if err := decode(text, &file); err != nil {
		return nil, err
	}
	for _, p := range file.Profiles {
		if p == nil {
			return nil, errEmpty
		}
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("profile %q: %w", p.Name, err)
		}
	}
	return file.Profiles, nil
}

// check compiles the rule, and has each number have its source.
func (p *Profile) check() error {
	if err := p.Want.check(); err != nil {
		return err
	}
	for field := range p.fields() {
		if p.Sources[field] == "" {
			return fmt.Errorf("no source of %s", field)
		}
	}
	for _, e := range []struct {
		text string
		to   **regexp.Regexp
	}{{p.Match.Vendor, &p.Match.vendor}, {p.Match.Product, &p.Match.product}, {p.Match.GPU, &p.Match.gpu}} {
		text := e.text
		if text == "" {
			text = ".*"
		}
		re, err := regexp.Compile("^(?:" + text + ")$")
		if err != nil {
			return err
		}
		*e.to = re
	}
	return nil
}

// Match returns the profile of a platform, nil if there is none or if several
// fit. before is the name of the one that matched last, "" for none: it stays
// while the GPUs do not say their names, and while GPUs are missing.
//
// Which GPUs there are must fit too: not more than the platform has, and at first
// more than half, since half a board may be a machine of its own.
func Match(profiles []*Profile, f *Facts, before string) *Profile {
	var best []*Profile
	for _, p := range profiles {
		if !p.fits(f, before) {
			continue
		}
		if len(best) > 0 && best[0].Match.Product != "" && p.Match.Product == "" {
			continue // one that names the product knows better
		}
		if len(best) > 0 && best[0].Match.Product == "" && p.Match.Product != "" {
			best = nil
		}
		best = append(best, p)
	}
	if len(best) != 1 {
		return nil
	}
	return best[0]
}

// fits reports whether a profile fits what is known.
func (p *Profile) fits(f *Facts, before string) bool {
	rule, was := &p.Match, p.Name == before
	known := func(text string, is bool, re *regexp.Regexp, pattern string) bool {
		return pattern == "" || is && re.MatchString(text) || !is && was
	}
	switch {
	case !known(f.Vendor.Value, f.Vendor.Known, rule.vendor, rule.Vendor),
		!known(f.Product.Value, f.Product.Known, rule.product, rule.Product),
		rule.BareMetal && f.Virtual.Value,
		rule.BareMetal && !f.Virtual.Known && !was:
		return false
	}
	if models := f.Models.Value; len(models) == 0 {
		if !was {
			return false
		}
	} else if !all(models, rule.gpu.MatchString) {
		return false
	}
	if p.GPUs == nil {
		return true
	}
	n, most := f.GPUs.Value, int(*p.GPUs)
	return was && (!f.GPUs.Known || n <= most) || f.GPUs.Known && n <= most && 2*n > most
}

func all(texts []string, is func(string) bool) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !is(text) })
}
