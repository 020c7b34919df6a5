package session

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// authority signs certificates in a directory.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// serial is the number of the last certificate; tests make some at the same time.
var serial atomic.Int64

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(a.dir, "ca.pem"), "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sign writes NAME.pem and NAME.key, for DNS names and URIs.
func (a *authority) sign(name string, change func(*x509.Certificate), names ...string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, one := range names {
		if !strings.Contains(one, "://") {
			template.DNSNames = append(template.DNSNames, one)
			continue
		}
		uri, err := url.Parse(one)
		if err != nil {
			a.t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	if change != nil {
		change(template)
	}
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writePEM(a.t, filepath.Join(a.dir, name+".pem"), "CERTIFICATE", der)
	writePEM(a.t, filepath.Join(a.dir, name+".key"), "PRIVATE KEY", private)
}

// config writes NAME.yml, with paths relative to it.
func (a *authority) config(name string, allowed ...string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name+".yml")
	text := fmt.Sprintf("cert_file: %s.pem\nkey_file: %s.key\nca_file: ca.pem\nallowed_names: [%q", name, name, allowed[0])
	for _, one := range allowed[1:] {
		text += fmt.Sprintf(", %q", one)
	}
	if err := os.WriteFile(path, []byte(text+"]\n"), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// identity is one of a name, which lets *.gpu.example in.
func (a *authority) identity(name string, change func(*x509.Certificate), names ...string) *Identity {
	a.t.Helper()
	a.sign(name, change, names...)
	i, err := LoadIdentity(a.config(name, "*.gpu.example", "spiffe://gpu.example/node/*"))
	if err != nil {
		a.t.Fatal(err)
	}
	return i
}
