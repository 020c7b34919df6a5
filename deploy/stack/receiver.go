package stack

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Notification is what Alertmanager told a receiver at one time.
type Notification struct {
	At       time.Time         `json:"-"` // on the wall clock
	Receiver string            `json:"receiver"`
	Status   string            `json:"status"` // firing, or resolved
	Group    map[string]string `json:"groupLabels"`
	Alerts   []Alert           `json:"alerts"`
}

// Alert is an alert of a Notification.
type Alert struct {
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// maxNotification bounds what is read of one: Alertmanager puts a whole group into it.
const maxNotification = 64 << 20

// Receiver takes notifications of Alertmanager's webhooks.
type Receiver struct {
	server *http.Server
	url    string
	told   func(Notification)

	mu  sync.Mutex
	all []Notification
}

// newReceiver listens on an address.
func newReceiver(address string, told func(Notification)) (*Receiver, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	r := &Receiver{url: "http://" + listener.Addr().String(), told: told}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

// ServeHTTP takes a notification.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	n := Notification{At: time.Now()}
	body, err := io.ReadAll(io.LimitReader(request.Body, maxNotification))
	if err == nil {
		err = json.Unmarshal(body, &n)
	}
	if err != nil {
		http.Error(w, "no notification of Alertmanager: "+err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.all = append(r.all, n)
	r.mu.Unlock()
	if r.told != nil {
		r.told(n)
	}
}

// Notifications are all that came, in their order.
func (r *Receiver) Notifications() []Notification {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

func (r *Receiver) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopMost)
	defer cancel()
	return r.server.Shutdown(ctx)
}

// String is a notification for a terminal, a line for each alert.
func (n *Notification) String() string {
	var b strings.Builder
	for i := range n.Alerts {
		a := &n.Alerts[i]
		b.WriteString(n.At.Format(time.TimeOnly) + " " + n.Receiver + " " + a.Status)
		for _, label := range []string{"severity", "alertname", "cluster", "node", "device", "port", "gpu_address", "address"} {
			if value := a.Labels[label]; value != "" {
				b.WriteString(" " + value)
			}
		}
		b.WriteString(": " + a.Annotations["description"] + "\n")
	}
	return b.String()
}
