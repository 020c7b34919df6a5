package capture

import (
	"fmt"

	"gdr_exporter/collector/process"
)

// PartProcess are the processes that use GPUs and RDMA devices. What is recorded is
// what package process lets through, never the files themselves: no value that is
// not on its list is in any recording.
const PartProcess = "process"

// Questions of PartProcess; but for the first the id of a process follows.
const (
	questionVisible     = "VISIBLE"
	questionStart       = "STAT "
	questionEnvironment = "ENVIRON "
	questionMemlock     = "MEMLOCK "
	questionLibraries   = "LIBRARIES "
)

// Process is for process.Options.Kernel.
func (r *Recorder) Process(kernel process.Kernel) process.Kernel {
	return &recordedProcesses{kernel, r.answers}
}

type recordedProcesses struct {
	kernel  process.Kernel
	answers *answerRecorder
}

func (p *recordedProcesses) Visible() (bool, error) {
	return ask(p.answers, PartProcess, questionVisible, p.kernel.Visible)
}

// askOf asks a question about a process.
func askOf[T any](r *answerRecorder, question string, pid int, put func(pid int) (T, error)) (T, error) {
	return ask(r, PartProcess, fmt.Sprint(question, pid), func() (T, error) { return put(pid) })
}

func (p *recordedProcesses) Stat(pid int) (process.Stat, error) {
	return askOf(p.answers, questionStart, pid, p.kernel.Stat)
}

func (p *recordedProcesses) Environment(pid int) (process.Environment, error) {
	return askOf(p.answers, questionEnvironment, pid, p.kernel.Environment)
}

func (p *recordedProcesses) Memlock(pid int) (uint64, error) {
	return askOf(p.answers, questionMemlock, pid, p.kernel.Memlock)
}

func (p *recordedProcesses) Libraries(pid int) (process.Libraries, error) {
	return askOf(p.answers, questionLibraries, pid, p.kernel.Libraries)
}

// Process is for process.Options.Kernel; nil if processes were not looked at.
func (p *Player) Process() process.Kernel {
	if !p.Has(PartProcess) {
		return nil
	}
	return playedProcesses{p.answers}
}

type playedProcesses struct{ answers *answerPlayer }

func (p playedProcesses) Visible() (bool, error) {
	return answer[bool](p.answers, PartProcess, questionVisible)
}

func (p playedProcesses) Stat(pid int) (process.Stat, error) {
	return answer[process.Stat](p.answers, PartProcess, fmt.Sprint(questionStart, pid))
}

func (p playedProcesses) Environment(pid int) (process.Environment, error) {
	return answer[process.Environment](p.answers, PartProcess, fmt.Sprint(questionEnvironment, pid))
}

func (p playedProcesses) Memlock(pid int) (uint64, error) {
	return answer[uint64](p.answers, PartProcess, fmt.Sprint(questionMemlock, pid))
}

func (p playedProcesses) Libraries(pid int) (process.Libraries, error) {
	return answer[process.Libraries](p.answers, PartProcess, fmt.Sprint(questionLibraries, pid))
}
