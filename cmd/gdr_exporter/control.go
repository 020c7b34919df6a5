package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback/prober"
	"gdr_exporter/rdma/peer"
)

// measurer is the prober as the control uses it.
type measurer interface {
	Status() *prober.Status
	ProbeNow(ctx context.Context, request prober.Request) ([]prober.Attempt, error)
	Quiesce(ctx context.Context, until time.Time) error
	Resume()
	Forget(gpu, device string) int
}

// Paths of the control.
const (
	pathProbe   = "/api/v1/probe"
	pathQuiesce = "/api/v1/quiesce"
	pathResume  = "/api/v1/resume"
	pathForget  = "/api/v1/forget"
	pathControl = "/api/v1/control"
	pathResults = "/api/v1/results"

	pathFindings = "/api/v1/findings"

	pathPeerResults = "/api/v1/peers/results"
)

// controlPaths are all paths of the control.
var controlPaths = []string{pathProbe, pathQuiesce, pathResume, pathForget, pathControl, pathResults, pathFindings, pathPeerResults}

// control is what commands from outside do with the daemon.
type control struct {
	prober measurer
	quiet  *quiet
	// forgetLearned drops what was learned of a GPU or device; nil: nothing was.
	forgetLearned func(gpu, device string) int
	// document is what the status page shows.
	document func(ctx context.Context) *status.Document
	// peers is what is known of the paths to other nodes, nil if they are not measured.
	peers func() *peer.Status
	// restart says what restart is wanted, and what keeps it back; "" for none.
	restart func() (reason, blocked string)
	// off is why nothing is ever measured, "" if it is.
	off    string
	logger *zap.Logger
	// stopping is done when the daemon ends.
	stopping context.Context
}

// endpoint is a path of the control.
type endpoint struct {
	method     string
	parameters []string
	serve      func(c *control, ctx context.Context, parameters url.Values) (any, error)
}

var endpoints = map[string]endpoint{
	pathProbe:   {http.MethodPost, []string{"gpu", "device", "force"}, (*control).probe},
	pathQuiesce: {http.MethodPost, []string{"for"}, (*control).quiesce},
	pathResume:  {http.MethodPost, nil, (*control).resume},
	pathForget:  {http.MethodPost, []string{"gpu", "device", "all"}, (*control).forget},
	pathControl: {http.MethodGet, nil, (*control).show},
	pathResults: {http.MethodGet, nil, (*control).results},

	pathFindings: {http.MethodGet, nil, (*control).findings},

	pathPeerResults: {http.MethodGet, nil, (*control).peerResults},
}

// apiError is an error with the code of its answer.
type apiError struct {
	code int
	error
}

func (e apiError) Unwrap() error { return e.error }

func badRequest(format string, args ...any) error {
	return apiError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// handler serves the control's paths.
func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, apiError{http.StatusNotFound, fmt.Errorf("no such path: %s", r.URL.Path)})
	})
	for path, e := range endpoints {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, e) })
	}
	return mux
}

// answer serves a request.
func (c *control) answer(w http.ResponseWriter, r *http.Request, e endpoint) {
	if r.Method != e.method && (r.Method != http.MethodHead || e.method != http.MethodGet) {
		w.Header().Set("Allow", e.method)
		writeError(w, apiError{http.StatusMethodNotAllowed, fmt.Errorf("%s wants the method %s", r.URL.Path, e.method)})
		return
	}
	const toRead, toWrite = 10 * time.Second, 30 * time.Second
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(toRead))
	parameters, err := parametersOf(w, r, e.parameters)
	if err != nil {
		writeError(w, err)
		return
	}
	// Measuring all pairs takes longer than an answer to a scrape may. A deadline for
	// reading would be taken for the end of the connection, and end it.
	_ = connection.SetReadDeadline(time.Time{})
	_ = connection.SetWriteDeadline(time.Time{})
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	answer, err := e.serve(c, ctx, parameters)
	_ = connection.SetWriteDeadline(time.Now().Add(toWrite))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// parametersOf are the parameters of the URL, or of a form in the body. One that
// is not known is refused: a mistyped one would otherwise mean "all".
func parametersOf(w http.ResponseWriter, r *http.Request, known []string) (url.Values, error) {
	const mostBody = 4 << 10
	r.Body = http.MaxBytesReader(w, r.Body, mostBody)
	if kind := r.Header.Get("Content-Type"); kind != "" && r.ContentLength != 0 {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/x-www-form-urlencoded" {
			return nil, apiError{http.StatusUnsupportedMediaType, errors.New("parameters go into the URL, or into a body of type application/x-www-form-urlencoded")}
		}
	}
	if err := r.ParseForm(); err != nil {
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			return nil, apiError{http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", large.Limit)}
		}
		return nil, badRequest("the parameters cannot be read: %w", err)
	}
	for name, values := range r.Form {
		if !slices.Contains(known, name) {
			return nil, badRequest("unknown parameter %q; known: %s", name, orNone(known))
		}
		if len(values) > 1 {
			return nil, badRequest("parameter %q is there twice", name)
		}
	}
	return r.Form, nil
}

func writeError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if coded := (apiError{}); errors.As(err, &coded) {
		code = coded.code
	}
	writeJSON(w, code, map[string]string{"error": err.Error()})
}

func writeJSON(w http.ResponseWriter, code int, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		code, text = http.StatusInternalServerError, []byte(`{"error": "the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// probe measures pairs now.
func (c *control) probe(ctx context.Context, parameters url.Values) (any, error) {
	force, err := boolOf(parameters, "force")
	if err != nil {
		return nil, err
	}
	if c.off != "" {
		return nil, apiError{http.StatusConflict, errors.New(c.off)}
	}
	request := prober.Request{GPU: strings.ToLower(parameters.Get("gpu")), Device: parameters.Get("device"), Force: force}
	c.logger.Info("told to measure now", zap.String("gpu", request.GPU), zap.String("device", request.Device), zap.Bool("force", force))
	attempts, err := c.prober.ProbeNow(ctx, request)
	switch {
	case ctx.Err() != nil:
		return nil, apiError{http.StatusServiceUnavailable, errors.New("the exporter is ending")}
	case errors.Is(err, prober.ErrNoPair) && request.GPU == "" && request.Device == "":
		return nil, apiError{http.StatusNotFound, errors.New("no GPU-NIC pair is to be measured on this host")}
	case err != nil:
		return nil, apiError{http.StatusNotFound, err}
	}
	return status.NewAttempts(attempts), nil
}

// boolOf takes 1, 0, true, false, and nothing for false.
func boolOf(parameters url.Values, name string) (bool, error) {
	switch value := parameters.Get(name); value {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, badRequest("%s=%s: must be 1 or 0", name, value)
	}
}

// quiesce lets go of the drivers for a while.
func (c *control) quiesce(ctx context.Context, parameters url.Values) (any, error) {
	span := defaultQuiesce
	if text := parameters.Get("for"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil {
			return nil, badRequest("for=%s: must be a duration such as 30m", text)
		}
	}
	if span <= 0 || span > mostQuiesce {
		return nil, badRequest("for=%v: must be above 0 and at most %v", span, mostQuiesce)
	}
	c.quiet.begin(ctx, span)
	return c.status(ctx), nil
}

// resume ends a quiesce.
func (c *control) resume(ctx context.Context, _ url.Values) (any, error) {
	c.quiet.end("told to resume")
	return c.status(ctx), nil
}

// forget drops results.
func (c *control) forget(_ context.Context, parameters url.Values) (any, error) {
	all, err := boolOf(parameters, "all")
	if err != nil {
		return nil, err
	}
	gpu, device := strings.ToLower(parameters.Get("gpu")), parameters.Get("device")
	if all == (gpu != "" || device != "") {
		return nil, badRequest("needs gpu, device or both, or all=1 alone")
	}
	forgotten := c.prober.Forget(gpu, device)
	c.logger.Info("told to forget results", zap.String("gpu", gpu), zap.String("device", device), zap.Int("pairs", forgotten))
	learned := 0
	if c.forgetLearned != nil {
		learned = c.forgetLearned(gpu, device)
	}
	return forgotAnswer{forgotten, learned}, nil
}

// forgotAnswer is of how many pairs results were forgotten, and how many things
// that were learned.
type forgotAnswer struct {
	Pairs   int `json:"pairs"`
	Learned int `json:"learned,omitempty"`
}

// show says what the daemon measures and what it holds.
func (c *control) show(ctx context.Context, _ url.Values) (any, error) { return c.status(ctx), nil }

// results are what is known of the pairs, in the form of a capture.
func (c *control) results(context.Context, url.Values) (any, error) {
	return capture.NewProberStatus(c.prober.Status()), nil
}

func (c *control) status(ctx context.Context) *status.Control {
	c.quiet.again(ctx)
	answer := status.NewControl(c.prober.Status())
	answer.Off = c.off
	if open, problem := c.quiet.holds(); len(open) > 0 || problem != "" {
		answer.OpenFiles, answer.Problem = append(answer.OpenFiles, open...), problem
	}
	answer.Released = len(answer.OpenFiles) == 0 && answer.Problem == ""
	if until := c.quiet.inForceUntil(); !until.IsZero() {
		answer.QuiescedUntil = &until
	}
	if reason, blocked := c.restart(); reason != "" {
		answer.Restart = &status.ControlRestart{Reason: reason, Blocked: blocked}
	}
	return answer
}

// nodeFindings is the answer of pathFindings.
type nodeFindings struct {
	Findings []status.DocFinding `json:"findings"`
}

// findings tells what is wrong with the node, as the status page has it.
func (c *control) findings(ctx context.Context, _ url.Values) (any, error) {
	return nodeFindings{c.document(ctx).Findings}, nil
}
