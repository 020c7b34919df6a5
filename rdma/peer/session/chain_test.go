package session

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"
)

// signer is what signs certificates that hold from one day to another.
type signer struct {
	t    *testing.T
	name string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// day is a time, so many days after a moment of all tests.
func day(n int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, n)
}

// certify makes a certificate of a key; nil signs itself.
func (s *signer) certify(by *signer, from, until int) *signer {
	s.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: s.name}, NotBefore: day(from), NotAfter: day(until),
		IsCA: s.name != "leaf", BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent, key := template, s.key
	if by != nil {
		parent, key = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, s.key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		s.t.Fatal(err)
	}
	return &signer{s.t, s.name, s.key, c}
}

// TestLife: a certificate is believed as long as all of a chain hold.
func TestLife(t *testing.T) {
	of := func(name string) *signer { return &signer{t: t, name: name, key: newKey(t)} }
	certificates := func(of ...*signer) (all []*x509.Certificate) {
		for _, s := range of {
			all = append(all, s.cert)
		}
		return all
	}
	root := of("root").certify(nil, 0, 1000)
	rootAgain := root.certify(nil, 900, 2000) // the same key
	short := of("short").certify(nil, 0, 150)
	shortAgain := short.certify(nil, 200, 500)
	between := of("between").certify(root, 50, 120)
	betweenAgain := between.certify(root, 110, 400)
	other := of("other").certify(nil, 0, 5000)
	leaf := func(by *signer, from, until int) *x509.Certificate {
		return of("leaf").certify(by, from, until).cert
	}
	for name, x := range map[string]struct {
		leaf              *x509.Certificate
		more, authorities []*x509.Certificate
		begins, ends      int
	}{
		"its own end is first":           {leaf(root, 100, 200), nil, certificates(root), 100, 200},
		"the authority's is":             {leaf(short, 100, 200), nil, certificates(short), 100, 150},
		"one in between":                 {leaf(between, 100, 200), certificates(between), certificates(root), 100, 120},
		"one in between, renewed":        {leaf(between, 100, 200), certificates(between, betweenAgain), certificates(root), 100, 200},
		"the authority, renewed":         {leaf(root, 890, 1500), nil, certificates(root, rootAgain), 890, 1500},
		"renewed, and not yet begun":     {leaf(root, 100, 950), nil, certificates(root, rootAgain), 100, 950},
		"renewed after a gap":            {leaf(short, 100, 400), nil, certificates(short, shortAgain), 200, 400},
		"the renewed authority alone":    {leaf(root, 890, 1500), nil, certificates(rootAgain), 900, 1500},
		"an old authority beside a new":  {leaf(root, 100, 200), nil, certificates(short, other, root), 100, 200},
		"of no authority":                {leaf(short, 100, 200), nil, certificates(root), 100, 200},
		"what is in between is missing":  {leaf(between, 100, 200), nil, certificates(root), 100, 200},
		"the authority ended before it":  {leaf(short, 151, 200), nil, certificates(short), 151, 150},
		"signed by itself, and believed": {other.cert, nil, certificates(other), 0, 5000},
	} {
		begins, ends := life(x.leaf, x.more, x.authorities)
		if !begins.Equal(day(x.begins)) || !ends.Equal(day(x.ends)) {
			t.Errorf("%s: from %v until %v, want %v and %v", name, begins, ends, day(x.begins), day(x.ends))
		}
	}
}

// TestStartsBounded: a file of many authorities costs no more than it must.
func TestStartsBounded(t *testing.T) {
	root := &signer{t: t, name: "root", key: newKey(t)}
	var many []*x509.Certificate
	for n := range 3 * mostStarts {
		many = append(many, root.certify(nil, n+1, 2000).cert)
	}
	if n := len(starts(root.certify(nil, 0, 1000).cert, many)); n != mostStarts {
		t.Errorf("%d times", n)
	}
}
