package session

import (
	"fmt"
	"net/url"
	"strings"
)

// pattern is an allowed name. A part * stands for exactly one label of a DNS name, or
// one part of the path of a URI.
type pattern struct {
	start string // scheme and host of a URI; "": a DNS name
	parts []string
}

const wild = "*"

func parsePattern(text string) (pattern, error) {
	bad := func(why string) (pattern, error) { return pattern{}, fmt.Errorf("%.100q: %s", text, why) }
	if strings.Contains(text, "://") {
		uri, err := url.Parse(text)
		if err != nil {
			return bad("no URI")
		}
		start, parts, ok := splitURI(uri)
		if !ok || strings.Contains(start, wild) {
			return bad("a URI of scheme, host and path is wanted, with * for whole parts of the path")
		}
		return pattern{start, parts}, checkParts(text, parts)
	}
	parts := labels(text)
	if len(text) > 253 {
		return bad("longer than a DNS name can be")
	}
	for _, label := range parts {
		if label == "" {
			return bad("an empty label")
		}
		if label != wild && strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return bad("a DNS name or URI is wanted, with * for whole labels")
		}
	}
	return pattern{"", parts}, nil
}

func checkParts(text string, parts []string) error {
	for _, part := range parts {
		if part != wild && strings.Contains(part, wild) {
			return fmt.Errorf("%.100q: * stands for a whole part of the path only", text)
		}
	}
	return nil
}

func labels(name string) []string { return strings.Split(strings.ToLower(name), ".") }

// splitURI takes those that are nothing but scheme, host and path.
func splitURI(uri *url.URL) (start string, parts []string, ok bool) {
	if uri.Scheme == "" || uri.Host == "" || uri.Opaque != "" || uri.User != nil || uri.RawQuery != "" || uri.ForceQuery || uri.Fragment != "" {
		return "", nil, false
	}
	return strings.ToLower(uri.Scheme + "://" + uri.Host), strings.Split(uri.EscapedPath(), "/"), true
}

func (p pattern) matchesDNS(name string) bool {
	return p.start == "" && matchParts(p.parts, labels(name))
}

func (p pattern) matchesURI(uri *url.URL) bool {
	start, parts, ok := splitURI(uri)
	return ok && p.start == start && matchParts(p.parts, parts)
}

func matchParts(pattern, parts []string) bool {
	if len(pattern) != len(parts) {
		return false
	}
	for i, part := range parts {
		if part == "" && pattern[i] == wild || pattern[i] != wild && pattern[i] != part {
			return false
		}
	}
	return true
}
