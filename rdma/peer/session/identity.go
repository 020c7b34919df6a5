package session

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v2"
)

// Identity is this host's certificate and whom it lets in: nodes whose certificate one
// authority has signed and that have an allowed name, in both directions. nil stands
// for plain TCP (--peer.insecure).
//
// The files are read again when they change, so that rotated certificates count from
// the next connection on; what cannot be read leaves the last good ones in place.
type Identity struct {
	files identityFiles
	names []pattern

	mu     sync.Mutex
	now    material
	stamps [3]stamp // of the files that now was read from
	err    error    // of the last look
}

// identityFiles is the text of the file.
type identityFiles struct {
	Certificate string   `yaml:"cert_file"`
	Key         string   `yaml:"key_file"`
	Authority   string   `yaml:"ca_file"`
	Names       []string `yaml:"allowed_names"`
}

// material is what the files say.
type material struct {
	certificate  tls.Certificate
	authority    *x509.CertPool
	begins, ends time.Time // see life
}

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

// mostIdentity bounds each file: whatever is longer is no certificate.
const mostIdentity = 1 << 20

// LoadIdentity reads a file in YAML that says where certificate, key and authority are
// (cert_file, key_file, ca_file, relative to the file itself) and which names are let
// in (allowed_names: DNS or URI names of certificates, where * stands for one label or
// one part of a path). Errors are one line.
func LoadIdentity(path string) (*Identity, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	i, err := parseIdentity(text, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := i.current(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return i, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostIdentity+1))
	if err != nil {
		return nil, err
	}
	if len(text) > mostIdentity {
		return nil, fmt.Errorf("%s: longer than %d bytes", path, mostIdentity)
	}
	return text, nil
}

// parseIdentity reads the file's text. Nothing else is read yet.
func parseIdentity(text []byte, dir string) (*Identity, error) {
	i := &Identity{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.SetStrict(true)
	if err := decoder.Decode(&i.files); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(yamlText(err))
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	for _, file := range []struct {
		key  string
		path *string
	}{{"cert_file", &i.files.Certificate}, {"key_file", &i.files.Key}, {"ca_file", &i.files.Authority}} {
		if *file.path == "" {
			return nil, fmt.Errorf("%s is missing", file.key)
		}
		if !filepath.IsAbs(*file.path) {
			*file.path = filepath.Join(dir, *file.path)
		}
	}
	if len(i.files.Names) == 0 {
		return nil, errors.New("allowed_names is missing: no peer could be let in")
	}
	for _, name := range i.files.Names {
		p, err := parsePattern(name)
		if err != nil {
			return nil, fmt.Errorf("allowed_names: %w", err)
		}
		i.names = append(i.names, p)
	}
	return i, nil
}

// yamlText is the first thing that is wrong, in one line.
func yamlText(err error) string {
	text := err.Error()
	if of := (*yaml.TypeError)(nil); errors.As(err, &of) && len(of.Errors) > 0 {
		text = of.Errors[0]
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(text, "yaml: "), "\n")
	return printable(first, 300)
}

// Err is why the files that are there now are not those that count; nil: they are.
func (i *Identity) Err() error {
	_, _ = i.current()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// Begins is from when on this host's certificate is believed: it and those of its
// authority hold.
func (i *Identity) Begins() time.Time {
	m, _ := i.current() // the last good one
	return m.begins
}

// Expires is when this host's certificate is not believed any more: it ends, or one of
// those of its authority does.
func (i *Identity) Expires() time.Time {
	m, _ := i.current() // the last good one
	return m.ends
}

// current is what the files say, as far as they were good the last time that they
// changed. The error is for the first time.
func (i *Identity) current() (material, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	// Before reading: what changes meanwhile is seen the next time.
	stamps, err := i.look()
	if err == nil && stamps == i.stamps && i.now.authority != nil {
		i.err = nil
		return i.now, nil
	}
	var m material
	if err == nil {
		m, err = i.files.read()
	}
	i.err = err
	if err == nil {
		i.now, i.stamps = m, stamps
	}
	return i.now, err
}

func (i *Identity) look() (stamps [3]stamp, err error) {
	for n, path := range []string{i.files.Certificate, i.files.Key, i.files.Authority} {
		info, err := os.Stat(path)
		if err != nil {
			return stamps, err
		}
		stamps[n] = stamp{info.ModTime(), info.Size()}
	}
	return stamps, nil
}

func (f identityFiles) read() (material, error) {
	var m material
	certificate, err := readBounded(f.Certificate)
	if err != nil {
		return m, err
	}
	key, err := readBounded(f.Key)
	if err != nil {
		return m, err
	}
	authority, err := readBounded(f.Authority)
	if err != nil {
		return m, err
	}
	if m.certificate, err = tls.X509KeyPair(certificate, key); err != nil {
		return m, fmt.Errorf("%s, %s: %s", f.Certificate, f.Key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	authorities := certificatesIn(authority)
	if len(authorities) == 0 {
		return m, fmt.Errorf("%s: no certificate in it", f.Authority)
	}
	m.authority = pool(authorities)
	leaf, err := x509.ParseCertificate(m.certificate.Certificate[0]) // as X509KeyPair did
	if err != nil {
		return m, fmt.Errorf("%s: %w", f.Certificate, err)
	}
	m.begins, m.ends = life(leaf, certificatesIn(certificate), authorities)
	return m, nil
}

// server and client are configurations for one connection. Tickets are off: whoever
// comes again shows its certificate again, for an authority may have been taken away.
// Names are looked at after the handshake, so that the other side can be told.
func (i *Identity) server() *tls.Config {
	m, _ := i.current() // the last good one
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.certificate}, SessionTicketsDisabled: true,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.authority,
	}
}

func (i *Identity) client() *tls.Config {
	m, _ := i.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Also if it is of no authority that the server names: then the server says what is
		// wrong with it, instead of that there is none.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.certificate, nil },
		// Not by the name that was dialled, which may be an address: by authority here,
		// by allowed names after the handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			chain := state.PeerCertificates
			options := x509.VerifyOptions{Roots: m.authority, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			for _, c := range chain[1:] {
				options.Intermediates.AddCert(c)
			}
			if _, err := chain[0].Verify(options); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
			}
			return nil
		},
	}
}

// admits fails unless a certificate has an allowed name.
func (i *Identity) admits(c *x509.Certificate) *Failure {
	var names []string
	for _, name := range c.DNSNames {
		names = append(names, name)
		for _, p := range i.names {
			if p.matchesDNS(name) {
				return nil
			}
		}
	}
	for _, uri := range c.URIs {
		names = append(names, uri.String())
		for _, p := range i.names {
			if p.matchesURI(uri) {
				return nil
			}
		}
	}
	shown := printable(strings.Join(names, ", "), 200)
	if shown == "" {
		shown = "none"
	}
	return failf(ReasonCertificate, StageTLS, "the certificate's names are not among those allowed: %s", shown)
}
