package peer

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestCertificateState: late is the last sixth of a life, two weeks at most; what is not
// known is neither good nor bad.
func TestCertificateState(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		begins, ends time.Duration // from now
		want         CertificateState
	}{
		"year, in time":             {-350 * day, 15 * day, CertificateGood},
		"year, two weeks":           {-351 * day, 14 * day, CertificateGood},
		"year, late":                {-351*day - time.Second, 14*day - time.Second, CertificateLate},
		"month, renewed at a third": {-20 * day, 10 * day, CertificateGood},
		"month, a sixth":            {-25 * day, 5 * day, CertificateGood},
		"month, late":               {-25*day - time.Second, 5*day - time.Second, CertificateLate},
		"an hour, at half":          {-30 * time.Minute, 30 * time.Minute, CertificateGood},
		"an hour, late":             {-51 * time.Minute, 9 * time.Minute, CertificateLate},
		"a second":                  {-365 * day, time.Second, CertificateLate},
		"now":                       {-365 * day, 0, CertificateEnded},
		"ended":                     {-365 * day, -365 * day / 2, CertificateEnded},
		"tomorrow":                  {day, 365 * day, CertificateEarly},
		"ends before it begins":     {2 * day, day, CertificateEarly},
	} {
		certificate := Certificate{Begins: now.Add(c.begins), Ends: now.Add(c.ends)}
		if got := certificate.State(now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := (&Certificate{}).State(now); got != CertificateUnknown {
		t.Errorf("nothing is known: %s", got)
	}
	// Of one that a program without begins has told.
	if got := (&Certificate{Ends: now.Add(13 * day)}).State(now); got != CertificateLate {
		t.Errorf("without a beginning: %s", got)
	}
	if got := (&Certificate{Ends: now.Add(15 * day)}).State(now); got != CertificateGood {
		t.Errorf("without a beginning, in time: %s", got)
	}
}

// TestStatusCertificate: what check asks the daemon for has the certificate, and nothing
// of it without TLS.
func TestStatusCertificate(t *testing.T) {
	ends := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []*Certificate{nil, {Begins: ends.Add(-time.Hour), Ends: ends, Text: "node.crt: no certificate"}} {
		text, err := json.Marshal(&Status{Certificate: c})
		if err != nil {
			t.Fatal(err)
		}
		var got Status
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if c == nil && (got.Certificate != nil || strings.Contains(string(text), "certificate")) || c != nil && (got.Certificate == nil || *got.Certificate != *c) {
			t.Errorf("%+v of %s", got.Certificate, text)
		}
	}
}
