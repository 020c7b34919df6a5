package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

// webClient is a client that trusts nobody but the test's authority, and shows the
// certificates given.
func webClient(t *testing.T, config *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patient}
}

// TestWebCertificate: with client_auth_type only who has a certificate of the authority
// gets anything, whatever he asks for.
func TestWebCertificate(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	otherCert, otherKey, _ := certificate(t)
	r := serveTree(t, onDisk(t, noRDMA()), "--web.config.file="+write(t, "web.yml", fmt.Sprintf(
		"tls_server_config: {cert_file: %s, key_file: %s, client_ca_file: %s, client_auth_type: RequireAndVerifyClientCert}\n", cert, key, cert)))
	load := func(cert, key string) []tls.Certificate {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	for name, test := range map[string]struct {
		certificates []tls.Certificate
		admitted     bool
	}{"none": {nil, false}, "of another": {load(otherCert, otherKey), false}, "own": {load(cert, key), true}} {
		client := webClient(t, &tls.Config{RootCAs: pool, Certificates: test.certificates, MinVersion: tls.VersionTLS12})
		for _, path := range []string{"/metrics", "/", "/-/healthy", "/api/v1/status"} {
			answer, err := fetch(t.Context(), client, "https://"+r.addresses[0]+path)
			if got := err == nil && answer.code == http.StatusOK; got != test.admitted {
				t.Errorf("certificate %s, %s: code %d, %v", name, path, answer.code, err)
			}
		}
	}
	old := webClient(t, &tls.Config{RootCAs: pool, Certificates: load(cert, key), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}) //nolint:gosec // it must be refused
	if answer, err := fetch(t.Context(), old, "https://"+r.addresses[0]+"/metrics"); err == nil {
		t.Errorf("TLS 1.1: code %d", answer.code)
	}
	if answer, err := fetch(t.Context(), http.DefaultClient, r.url("/metrics")); err != nil || answer.code != http.StatusBadRequest {
		t.Errorf("without TLS: code %d, %v", answer.code, err)
	}
}

// scrapes scrapes again and again until end is called, which returns how many scrapes
// were served; one that was not fails the test.
func (r *running) scrapes(t *testing.T, client *http.Client, header ...string) (end func() int) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	served := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-t.Context().Done():
				return
			default:
			}
			answer, err := fetch(t.Context(), client, r.url("/metrics"), header...)
			if t.Context().Err() != nil {
				return
			}
			if err != nil || answer.code != http.StatusOK {
				t.Errorf("a scrape meanwhile: code %d, %v", answer.code, err)
				return
			}
			served++
		}
	}()
	return func() int { close(stop); <-ended; return served }
}

// TestWebWrongPasswords: wrong passwords, many and at once, are refused; who knows the
// right one is served all the while.
func TestWebWrongPasswords(t *testing.T) {
	t.Parallel()
	r := serveTree(t, onDisk(t, noRDMA()), "--web.config.file="+write(t, "web.yml", "basic_auth_users: {me: "+bcryptOfSecret+"}\n"))
	client := webClient(t, nil)
	end := r.scrapes(t, client, "Authorization", basicAuth("me", "secret"))
	const guessers, guesses = 4, 6
	var refused atomic.Int64
	var wg sync.WaitGroup
	for guesser := range guessers {
		wg.Go(func() {
			for i := range guesses {
				user := []string{"me", "root", ""}[i%3]
				answer, err := fetch(t.Context(), client, r.url([]string{"/metrics", "/", "/-/healthy"}[i%3]), "Authorization", basicAuth(user, fmt.Sprint("guess", guesser, i)))
				if err != nil || answer.code != http.StatusUnauthorized || len(answer.body) > 100 {
					t.Errorf("code %d, %d bytes, %v", answer.code, len(answer.body), err)
					return
				}
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if served := end(); served == 0 {
		t.Error("no scrape was served meanwhile")
	} else {
		t.Logf("%d guesses refused, %d scrapes served meanwhile", refused.Load(), served)
	}
}

func basicAuth(user, password string) string {
	request := http.Request{Header: http.Header{}}
	request.SetBasicAuth(user, password)
	return request.Header.Get("Authorization")
}

// TestWebSlowClients: clients that send their request a byte at a time, and such that
// never read what they asked for, hold up nobody else, and are got rid of.
func TestWebSlowClients(t *testing.T) {
	t.Parallel()
	// Few places: clients that kept theirs would leave none.
	const places, senders, readers = 4, 100, 4
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8", fmt.Sprint("--web.max-requests=", places))
	waitUntil(t, "the first snapshot", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	slow := make([]*net.TCPConn, 0, senders+readers)
	for i := range senders + readers {
		request := "GET /metrics HTTP/1.1\r\nHost: "
		if i >= senders {
			request = strings.Repeat("GET /metrics HTTP/1.1\r\nHost: me\r\n\r\n", 1000)
		}
		slow = append(slow, ask(t, r.addresses[0], request))
	}
	r.waitIdle(t) // all readers' pages wait to be taken
	if page := r.get(t, "/metrics"); page.code != http.StatusOK {
		t.Errorf("beside clients that do not take their pages: code %d: %.100s", page.code, page.body)
	}
	const longest = 3 * time.Minute // the deadlines are of 10 s; the machine may be slow
	served, until := 0, time.Now().Add(longest)
	for {
		if time.Now().After(until) {
			t.Fatalf("slow clients are not got rid of; %d scrapes served", served)
		}
		for _, connection := range slow[:senders] {
			_ = connection.SetWriteDeadline(time.Now().Add(time.Millisecond))
			_, _ = connection.Write([]byte("x")) // it goes on, until it is refused
		}
		// While the readers' pages are being made there may be no place.
		page := r.get(t, "/metrics")
		open := valueOf(page.body, "process_open_fds")
		switch {
		case page.code == http.StatusOK && open < senders:
			if served == 0 {
				t.Error("no scrape was served as long as there were slow clients")
			}
			t.Logf("%d scrapes served beside slow clients", served)
			r.wantLittleMemory(t)
			return
		case page.code == http.StatusOK:
			served++
		case page.code != http.StatusServiceUnavailable:
			t.Fatalf("code %d", page.code)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// waitIdle waits until the program has used next to no processor time for a while.
func (r *running) waitIdle(t *testing.T) {
	t.Helper()
	process, err := procfs.NewProc(r.command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	before := math.Inf(-1)
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		stat, err := process.Stat()
		if err != nil {
			t.Fatal(err)
		}
		const idle = 0.02
		if now := stat.CPUTime(); now-before <= idle {
			return
		} else if before = now; time.Now().After(until) {
			t.Fatal("the program is busy all the time")
		}
	}
}

// ask opens a connection and sends a request, or some of it.
func ask(t *testing.T, address, request string) *net.TCPConn {
	t.Helper()
	// Small from the first packet on: of what is sent little fits into the connection.
	dialer := net.Dialer{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1<<10) })
	}}
	connection, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	tcp := connection.(*net.TCPConn)
	// What does not fit into the connection is left out.
	_ = tcp.SetWriteDeadline(time.Now().Add(time.Second))
	if n, err := io.WriteString(tcp, request); n == 0 {
		t.Fatal(err)
	}
	return tcp
}

// valueOf is the value of a metric without labels, NaN if there is none.
func valueOf(page, name string) float64 {
	match := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(page)
	if match == nil {
		return math.NaN()
	}
	value, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		return math.NaN()
	}
	return value
}

// mostMemory is far above what is used, and far below what one page for each of a
// thousand clients would take with all that is made to write it.
const mostMemory = 200 << 20

// wantLittleMemory checks how much of the heap the program uses.
func (r *running) wantLittleMemory(t *testing.T) {
	t.Helper()
	used := valueOf(r.get(t, "/metrics").body, "go_memstats_heap_inuse_bytes")
	t.Logf("heap: %.0f MiB", used/(1<<20))
	if !(used < mostMemory) {
		t.Errorf("%v bytes are in use", used)
	}
}

// TestWebThousand: of 1,000 requests at once each is served or refused at once, and the
// memory that they take is bounded.
func TestWebThousand(t *testing.T) {
	t.Parallel()
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8")
	waitUntil(t, "the first snapshot", func() bool { return r.get(t, "/-/ready").code == http.StatusOK })
	const requests = 1000
	client := webClient(t, nil)
	start := make(chan struct{})
	codes := make(chan int, requests)
	for range requests {
		go func() {
			<-start
			answer, err := fetch(t.Context(), client, r.url("/metrics"))
			if err != nil || answer.code == http.StatusOK && len(answer.body) < 100_000 {
				t.Errorf("%d bytes, %v", len(answer.body), err)
			}
			codes <- answer.code
		}()
	}
	close(start)
	count := map[int]int{}
	for range requests {
		count[<-codes]++
	}
	if count[http.StatusOK]+count[http.StatusServiceUnavailable] != requests || count[http.StatusOK] < 40 {
		t.Errorf("codes %v", count)
	}
	if page := r.get(t, "/metrics"); page.code != http.StatusOK {
		t.Errorf("a scrape after: code %d", page.code)
	}
	t.Logf("served and refused: %v", count)
	r.wantLittleMemory(t)
}
