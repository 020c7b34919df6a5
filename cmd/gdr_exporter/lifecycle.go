package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"
)

// controlHeader is in every request of the control by HTTP: a page in a browser
// cannot send it to another site unasked.
const controlHeader = "X-Gdr-Exporter"

// requiresClientCert is the client_auth_type of exporter-toolkit that has a
// client's certificate verified.
const requiresClientCert = "RequireAndVerifyClientCert"

// guarded lets requests through to next that prove who they are from. Passwords
// and certificates are checked by exporter-toolkit before; it reads its file at
// each request, so here is looked at each time whether it still asks for them.
func guarded(webConfig string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		config, err := readWebConfig(webConfig)
		if err != nil {
			writeError(w, apiError{http.StatusInternalServerError, fmt.Errorf("--web.config.file: %w", err)})
			return
		}
		if err := admit(config, r); err != nil {
			writeError(w, apiError{http.StatusForbidden, err})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admit reports why a request is refused, or nil.
func admit(config *web.Config, r *http.Request) error {
	switch {
	case !asksForPassword(config) && !asksForCertificate(config):
		return errNoAuthentication
	case !knows(config, r):
		return errors.New("the request has neither a password nor a verified certificate")
	case len(r.Header.Values(controlHeader)) == 0:
		return fmt.Errorf("the header %s is missing; any value will do", controlHeader)
	case !sameOrigin(r):
		return errors.New("the header Origin names another site")
	}
	return nil
}

var errNoAuthentication = errors.New("needs --web.config.file with basic_auth_users, or with client_auth_type: " + requiresClientCert + " and a client_ca_file or client_ca")

// authenticates reports why the file asks nobody who he is, or nil.
func authenticates(webConfig string) error {
	if webConfig == "" {
		return errNoAuthentication
	}
	config, err := readWebConfig(webConfig)
	if err != nil {
		return err
	}
	if !asksForPassword(config) && !asksForCertificate(config) {
		return errNoAuthentication
	}
	return nil
}

func readWebConfig(path string) (*web.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, unpath(err)
	}
	var config web.Config
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return nil, err
	}
	return &config, nil
}

func asksForPassword(c *web.Config) bool { return len(c.Users) > 0 }

// asksForCertificate wants an authority named: without one the certificates of
// everybody would do that the system trusts.
func asksForCertificate(c *web.Config) bool {
	return c.TLSConfig.ClientAuth == requiresClientCert && (c.TLSConfig.ClientCAs != "" || c.TLSConfig.ClientCAsText != "")
}

// knows reports whether the request itself has what the file asks for: it may
// have come over a connection that was made under an earlier file.
func knows(c *web.Config, r *http.Request) bool {
	if user, _, found := r.BasicAuth(); found && asksForPassword(c) {
		_, listed := c.Users[user]
		return listed
	}
	return asksForCertificate(c) && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// sameOrigin reports whether the request comes from no page, or from one of the
// exporter's own.
func sameOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	origin, err := url.Parse(origins[0])
	return len(origins) == 1 && err == nil && origin.Host != "" && strings.EqualFold(origin.Host, r.Host)
}

// refuseControl answers for the control where it is not offered.
func refuseControl(w http.ResponseWriter, _ *http.Request) {
	writeError(w, apiError{http.StatusForbidden, errors.New("only over the unix socket (gdr_exporter ctl), or with --web.enable-lifecycle")})
}
