// Package gputest stands in for NVML: machines made up on go-nvml's mocks, with
// what goes wrong with real ones.
//
// The mocks panic on a call that is not stubbed, so they also prove what is not
// called.
package gputest
