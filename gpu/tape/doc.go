// Package tape keeps what NVML answered, call by call, and answers from that
// again: the GPUs' part of a capture. A tape is text, so that it can be read,
// compared and made anonymous.
package tape
