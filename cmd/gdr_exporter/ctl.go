package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gdr_exporter/collector/status"
	"gdr_exporter/rdma/loopback/prober"
)

const ctlHelp = "Command the running exporter through its control socket.\n\n" +
	"Example, before the driver is upgraded and after it:\n\n  gdr_exporter ctl quiesce --for 15m\n  gdr_exporter ctl resume\n\n" +
	"Exit code: 0 done, 3 a measurement found something bad, 4 something was not measured or not released, " +
	"2 a mistake on the command line, or no daemon answers."

const ctlProbeHelp = "Measure pairs now and wait for it. What keeps scheduled measurements back keeps these back too, but for load with --force.\n\n" +
	"Example:\n\n  gdr_exporter ctl probe --gpu 0000:1b:00.0 --device mlx5_0"

const ctlQuiesceHelp = "Measure nothing and keep no file of NVIDIA's driver and of the RDMA core open, for a time that ends by itself. " +
	"Returns when the files are released; metrics are served all the time.\n\n" +
	"Example:\n\n  gdr_exporter ctl quiesce --for 15m && modprobe -r nvidia_uvm nvidia"

// ctlConfig is what the command line says of a command to the daemon.
type ctlConfig struct {
	socket, output, gpu, device string
	force                       bool
	span                        time.Duration
}

// ctlFlags adds the command ctl.
func ctlFlags(app *kingpin.Application, c *config) {
	x := &c.ctl
	command := app.Command("ctl", ctlHelp)
	command.Flag("socket", "Control socket. Default: that of --control.socket.").PlaceHolder("PATH").StringVar(&x.socket)
	command.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&x.output, "table", "json")
	probe := command.Command("probe", ctlProbeHelp)
	probe.Flag("gpu", "GPU by its PCI address. Default: every GPU.").PlaceHolder("ADDRESS").StringVar(&x.gpu)
	probe.Flag("device", "RDMA device. Default: every device of a pair to be measured.").PlaceHolder("NAME").StringVar(&x.device)
	probe.Flag("force", "Measure although NIC or GPU are busy.").BoolVar(&x.force)
	quiesce := command.Command("quiesce", ctlQuiesceHelp)
	quiesce.Flag("for", "How long, at most 12h.").Default("30m").DurationVar(&x.span)
	command.Command("resume", "End a quiesce.\n\nExample:\n\n  gdr_exporter ctl resume")
	command.Command("status", "Show what is measured, when next, and which driver files are open.\n\nExample:\n\n  gdr_exporter ctl status --output json | jq .released")
}

// ctl sends a command to the daemon and shows what it answers.
func ctl(ctx context.Context, c *config, command string, stdout io.Writer) error {
	client := newClient(c.ctl.socket, c.socket)
	if client.socket == "" {
		return usagef("--control.socket is empty: there is no daemon to command")
	}
	switch command {
	case "probe":
		return ctlProbe(ctx, &c.ctl, client, stdout)
	case "quiesce":
		return ctlQuiesce(ctx, &c.ctl, client, stdout)
	case "resume":
		return ctlShow(ctx, &c.ctl, client, http.MethodPost, pathResume, stdout)
	default:
		return ctlShow(ctx, &c.ctl, client, http.MethodGet, pathControl, stdout)
	}
}

// ctlProbe measures now.
func ctlProbe(ctx context.Context, x *ctlConfig, client *client, stdout io.Writer) error {
	parameters := url.Values{}
	for name, value := range map[string]string{"gpu": x.gpu, "device": x.device} {
		if value != "" {
			parameters.Set(name, value)
		}
	}
	if x.force {
		parameters.Set("force", "1")
	}
	var answer status.Attempts
	if err := client.call(ctx, http.MethodPost, pathProbe, parameters, &answer); err != nil {
		return err
	}
	if err := x.write(stdout, &answer, answer.WriteTable); err != nil {
		return err
	}
	return attemptsExit(answer.Attempts)
}

// attemptsExit is the error that gives the exit code.
func attemptsExit(attempts []status.Attempt) error {
	bad := []prober.RunResult{prober.RunSlow, prober.RunFailed, prober.RunCorrupt, prober.RunCrashed, prober.RunHung}
	code := exitOK
	for i := range attempts {
		switch result := prober.RunResult(attempts[i].Result); {
		case slices.Contains(bad, result):
			return exitError(exitProbeBad)
		case result != prober.RunFine:
			code = exitProbeNotJudged
		}
	}
	if code != exitOK || len(attempts) == 0 {
		return exitError(exitProbeNotJudged)
	}
	return nil
}

// ctlQuiesce quiesces and waits until the driver files are released.
func ctlQuiesce(ctx context.Context, x *ctlConfig, client *client, stdout io.Writer) error {
	if x.span <= 0 || x.span > mostQuiesce {
		return usagef("--for=%v: must be above 0 and at most %v", x.span, mostQuiesce)
	}
	var answer status.Control
	if err := client.call(ctx, http.MethodPost, pathQuiesce, url.Values{"for": {x.span.String()}}, &answer); err != nil {
		return err
	}
	if err := client.awaitRelease(ctx, &answer); err != nil {
		return err
	}
	if err := x.write(stdout, &answer, func(w io.Writer) error { return writeQuiesced(w, &answer) }); err != nil {
		return err
	}
	if !answer.Released {
		return exitError(exitProbeNotJudged)
	}
	return nil
}

func writeQuiesced(w io.Writer, answer *status.Control) error {
	until := "the time is over already"
	if answer.QuiescedUntil != nil {
		until = "until " + answer.QuiescedUntil.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	text := fmt.Sprintf("Quiesced %s; all driver files are released.\n", until)
	if !answer.Released {
		text = fmt.Sprintf("Quiesced %s, but not all driver files are released: %s\n", until, oneLine(strings.Join(answer.Held(), "; ")))
	}
	_, err := io.WriteString(w, text)
	return err
}

// awaitRelease asks the daemon until it has started afresh without driver files,
// or until it says that it does not.
func (c *client) awaitRelease(ctx context.Context, answer *status.Control) error {
	const most, pause = 45 * time.Second, 100 * time.Millisecond
	deadline := time.Now().Add(most)
	for !answer.Released && answer.Restart != nil && answer.Restart.Blocked == "" && time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		var now status.Control
		switch err := c.call(ctx, http.MethodGet, pathControl, nil, &now); {
		case err == nil:
			*answer = now
		case !isAbsent(err): // else it is just starting afresh
			return err
		}
	}
	return nil
}

// ctlShow sends a command that answers with the daemon's state.
func ctlShow(ctx context.Context, x *ctlConfig, client *client, method, path string, stdout io.Writer) error {
	var answer status.Control
	if err := client.call(ctx, method, path, nil, &answer); err != nil {
		return err
	}
	return x.write(stdout, &answer, func(w io.Writer) error { return answer.WriteTable(w, time.Now()) })
}

func (x *ctlConfig) write(stdout io.Writer, answer any, table func(io.Writer) error) error {
	if x.output == "json" {
		return writeIndented(stdout, answer)
	}
	return table(stdout)
}

func writeIndented(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// client speaks to the daemon through its control socket.
type client struct {
	socket string
	http   *http.Client
}

// newClient returns a client for the first socket that is named.
func newClient(sockets ...string) *client {
	socket := ""
	for _, named := range sockets {
		if socket == "" {
			socket = named
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	// A connection that is kept would be to the process before a fresh start.
	return &client{socket, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// absentError says that nobody answers at a socket.
type absentError struct{ error }

func isAbsent(err error) bool { return errors.As(err, new(absentError)) }

// call makes a request and reads its answer.
func (c *client) call(ctx context.Context, method, path string, parameters url.Values, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer response.Body.Close()
	const most = 16 << 20
	body := io.LimitReader(response.Body, most)
	if response.StatusCode != http.StatusOK {
		var failure struct {
			Error string `json:"error"`
		}
		if err := json.NewDecoder(body).Decode(&failure); err != nil || failure.Error == "" {
			failure.Error = response.Status
		}
		if response.StatusCode < http.StatusInternalServerError {
			return usagef("%s", failure.Error)
		}
		return errors.New(failure.Error)
	}
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

// explain says in a few words why the daemon did not answer.
func (c *client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	var number syscall.Errno
	switch {
	case errors.As(err, &number):
		err = number
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the connection ended without an answer")
	}
	absent := absentError{fmt.Errorf("no daemon answers at %s: %w", c.socket, err)}
	if errors.Is(err, fs.ErrPermission) {
		return usageError{fmt.Errorf("%w (it is for its owner alone)", absent)}
	}
	return usageError{absent}
}

const stateHelp = "Show or drop what the exporter keeps of measurements past its end.\n\nExample:\n\n  gdr_exporter state show"

const stateForgetHelp = "Drop the results and baselines of pairs, and what was learned of what the node should have of that GPU or device, in the running exporter if there is one, else in its file.\n\n" +
	"Example, after a GPU was replaced:\n\n  gdr_exporter state forget --gpu 0000:1b:00.0"

// stateConfig is what the command line says of the state file.
type stateConfig struct {
	output, gpu, device string
	all                 bool
}

// stateFlags adds the command state.
func stateFlags(app *kingpin.Application, c *config) {
	x := &c.state
	command := app.Command("state", stateHelp)
	show := command.Command("show", "Show the results, the baselines and the ports seen ACTIVE that are kept in --state.dir.\n\n"+
		"Example:\n\n  gdr_exporter state show --output json | jq .baselines")
	show.Flag("output", "Form of the output: table or json.").Default("table").EnumVar(&x.output, "table", "json")
	forget := command.Command("forget", stateForgetHelp)
	forget.Flag("gpu", "GPU by its PCI address.").PlaceHolder("ADDRESS").StringVar(&x.gpu)
	forget.Flag("device", "RDMA device.").PlaceHolder("NAME").StringVar(&x.device)
	forget.Flag("all", "Everything.").BoolVar(&x.all)
}

// showState prints the state file.
func showState(c *config, stdout io.Writer) error {
	state, err := c.readState()
	if err != nil {
		return err
	}
	if c.state.output == "json" {
		return writeIndented(stdout, state)
	}
	return status.WriteState(stdout, state, time.Now())
}

func (c *config) readState() (*prober.State, error) {
	if c.stateDir == "" {
		return nil, usagef("--state.dir is empty: nothing is kept")
	}
	if _, err := os.Stat(c.stateDir); err != nil {
		return nil, usagef("--state.dir=%s: %w", c.stateDir, unpath(err))
	}
	state, err := prober.ReadState(c.stateDir)
	if err != nil {
		return nil, fmt.Errorf("--state.dir=%s: %w", c.stateDir, err)
	}
	return state, nil
}

// forgetState drops results, where they are.
func forgetState(ctx context.Context, c *config, stdout io.Writer) error {
	x := &c.state
	x.gpu = strings.ToLower(x.gpu)
	if x.all == (x.gpu != "" || x.device != "") {
		return usagef("say what to forget: --gpu, --device or both, or --all alone")
	}
	if c.stateDir == "" {
		return usagef("--state.dir is empty: nothing is kept")
	}
	var forgot forgotAnswer
	unlock, err := lockPresent(c.stateDir)
	switch {
	case errors.Is(err, prober.ErrStateInUse):
		forgot, err = x.forgetInDaemon(ctx, c.socket)
	case err == nil:
		defer unlock()
		defer leaveToOwner(c.stateDir)
		forgot, err = x.forgetInFile(c)
	default:
		err = usagef("--state.dir=%s: %w", c.stateDir, unpath(err))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Forgot what was known of %d pairs.\n", forgot.Pairs)
	if forgot.Learned > 0 {
		fmt.Fprintf(stdout, "Forgot %d ports and numbers that were learned of what this node should have; they are learned anew.\n", forgot.Learned)
	}
	return nil
}

// lockPresent locks a state directory, but makes none.
func lockPresent(dir string) (unlock func(), err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return prober.LockState(dir)
}

func (x *stateConfig) forgetInDaemon(ctx context.Context, socket string) (forgotAnswer, error) {
	if socket == "" {
		return forgotAnswer{}, usagef("a running exporter holds the state, and --control.socket is empty")
	}
	parameters := url.Values{}
	if x.gpu != "" {
		parameters.Set("gpu", x.gpu)
	}
	if x.device != "" {
		parameters.Set("device", x.device)
	}
	if x.all {
		parameters.Set("all", "1")
	}
	var answer forgotAnswer
	if err := newClient(socket).call(ctx, http.MethodPost, pathForget, parameters, &answer); err != nil {
		return forgotAnswer{}, fmt.Errorf("a running exporter holds the state: %w", err)
	}
	return answer, nil
}

func (x *stateConfig) forgetInFile(c *config) (forgotAnswer, error) {
	state, err := c.readState()
	if err != nil {
		return forgotAnswer{}, err
	}
	pairs := state.Forget(x.gpu, x.device)
	if err := state.Write(c.stateDir); err != nil {
		return forgotAnswer{}, fmt.Errorf("--state.dir=%s: %w", c.stateDir, err)
	}
	learned, err := x.forgetLearned(c.stateDir)
	if err != nil {
		return forgotAnswer{}, fmt.Errorf("--state.dir=%s: %w", c.stateDir, err)
	}
	return forgotAnswer{pairs, learned}, nil
}
