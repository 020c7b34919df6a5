package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// knownRoles are the roles a device can have. Expectations and alerts concern
// compute devices.
var knownRoles = []string{"compute", "storage", "management", "unused"}

// roles is the value of --rdma.role.
type roles []role

type role struct {
	name *regexp.Regexp
	role string
}

// Set implements kingpin.Value for REGEXP=ROLE.
func (r *roles) Set(text string) error {
	cut := strings.LastIndex(text, "=")
	if cut <= 0 {
		return errors.New("not of the form REGEXP=ROLE")
	}
	kind := text[cut+1:]
	if !slices.Contains(knownRoles, kind) {
		return fmt.Errorf("unknown role %q, known are %s", kind, strings.Join(knownRoles, ", "))
	}
	var re *regexp.Regexp
	if err := (anchored{&re}).Set(text[:cut]); err != nil {
		return err
	}
	*r = append(*r, role{re, kind})
	return nil
}

// String implements kingpin.Value.
func (r *roles) String() string { return "" }

// IsCumulative tells kingpin that the flag may be repeated.
func (r *roles) IsCumulative() bool { return true }

// Role returns the role that a flag gives the device, "" where none does.
func (r roles) Role(device string) string {
	for _, role := range r {
		if role.name.MatchString(device) {
			return role.role
		}
	}
	return ""
}
