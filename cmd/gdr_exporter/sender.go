package main

import (
	"bytes"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// mostToSend is how long a client may take to take its page off the exporter's hands.
const mostToSend = 10 * time.Second

// sentAfter has a page written into memory first and sent when next is done with it:
// a client that does not read what it asked for then holds no scrape's place, only its
// connection and, for a while, its page.
func sentAfter(next http.Handler) http.Handler {
	var pages sync.Pool // of *bytes.Buffer
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, is := pages.Get().(*bytes.Buffer)
		if !is {
			body = &bytes.Buffer{}
		}
		defer pages.Put(body)
		body.Reset()
		page := &heldPage{header: w.Header(), body: body, code: http.StatusOK}
		next.ServeHTTP(page, r)
		// What holds no page is served by the server's own deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(mostToSend))
		if w.Header().Get("Content-Length") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		}
		w.WriteHeader(page.code)
		_, _ = w.Write(body.Bytes())
	})
}

// heldPage is an answer that is kept until it is whole.
type heldPage struct {
	header  http.Header
	body    *bytes.Buffer
	code    int
	decided bool
}

// Header implements http.ResponseWriter.
func (p *heldPage) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter. The first code counts, as on the wire.
func (p *heldPage) WriteHeader(code int) {
	if !p.decided {
		p.code, p.decided = code, true
	}
}

// Write implements http.ResponseWriter.
func (p *heldPage) Write(text []byte) (int, error) {
	p.decided = true
	return p.body.Write(text)
}
