package session

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// life is from when until when a certificate is believed by those who go by the same
// authorities: as long as all certificates of one chain hold, of one chain after the other
// up to that which holds longest. An authority whose own certificate ends takes all with it
// that it has signed. What none of them has signed is believed elsewhere, if at all, for as
// long as it says.
func life(leaf *x509.Certificate, intermediates, authorities []*x509.Certificate) (begins, ends time.Time) {
	var all []span
	options := x509.VerifyOptions{Roots: pool(authorities), Intermediates: pool(intermediates), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, at := range starts(leaf, intermediates, authorities) {
		options.CurrentTime = at
		chains, _ := leaf.Verify(options) // there may be none at that time
		for _, chain := range chains {
			all = append(all, shared(chain...))
		}
	}
	if len(all) == 0 {
		return neverHeld(leaf, authorities)
	}
	slices.SortFunc(all, func(a, b span) int { return b.until.Compare(a.until) })
	begins, ends = all[0].from, all[0].until
	for _, s := range all {
		if !s.until.Before(begins) && s.from.Before(begins) {
			begins = s.from // it holds before the other and until then
		}
	}
	return begins, ends
}

// span is a time.
type span struct{ from, until time.Time }

// neverHeld is the life of a certificate without a chain. One that an authority has signed
// whose certificate here had ended by then, as where ca_file was not renewed, has ended
// with that.
func neverHeld(leaf *x509.Certificate, authorities []*x509.Certificate) (begins, ends time.Time) {
	for _, c := range authorities {
		if leaf.CheckSignatureFrom(c) != nil {
			continue
		}
		if s := shared(leaf, c); s.until.After(ends) {
			begins, ends = s.from, s.until
		}
	}
	if ends.IsZero() {
		return leaf.NotBefore, leaf.NotAfter
	}
	return begins, ends
}

// mostStarts bounds the times at which chains are looked for.
const mostStarts = 32

// starts are the times at which a chain of the certificate can begin to hold: an
// authority's may have been renewed since the certificate was signed.
func starts(leaf *x509.Certificate, more ...[]*x509.Certificate) []time.Time {
	all := []time.Time{leaf.NotBefore}
	for _, certificates := range more {
		for _, c := range certificates {
			if at := c.NotBefore; at.After(leaf.NotBefore) && !at.After(leaf.NotAfter) && len(all) < mostStarts {
				all = append(all, at)
			}
		}
	}
	return all
}

// shared is the time in which all of some certificates hold.
func shared(chain ...*x509.Certificate) span {
	s := span{chain[0].NotBefore, chain[0].NotAfter}
	for _, c := range chain[1:] {
		if c.NotBefore.After(s.from) {
			s.from = c.NotBefore
		}
		if c.NotAfter.Before(s.until) {
			s.until = c.NotAfter
		}
	}
	return s
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// certificatesIn are the certificates of a file in PEM. What is none is left out, as
// [x509.CertPool.AppendCertsFromPEM] does.
func certificatesIn(text []byte) (all []*x509.Certificate) {
	for len(text) > 0 {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}
