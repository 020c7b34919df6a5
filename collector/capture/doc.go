// Package capture keeps what the readers read of a host and serves it to them
// again: for a bug report, for tests, and to show the exporter without hardware.
//
// It sits below the readers. A [Recorder] stands between a reader and the kernel
// and notes each question with its answer or errno; a [Player] stands in the
// kernel's place and answers from a [Recording]. The readers are the same, and
// so is the page.
//
// Files are noted under the paths that they have once symbolic links are
// followed, with the links beside them, so that a file which is read under
// several names is in a recording once. What is not a file (netlink, ethtool,
// NVML) is noted as questions, in a form that says what is in it: no bytes of a
// protocol, of which nobody could tell what they reveal.
//
// A recording may carry a [Scenario]: then a replay by [Move] goes on from where
// the recording ended, and counters count, links flap, devices vanish. Times that
// are in the recording are shown as old as they were.
//
// The text of a recording is one line of JSON per answer, in a fixed order, so
// that two recordings can be compared with diff. It is read as text from
// strangers: bounded, checked, and never turned into files.
package capture
