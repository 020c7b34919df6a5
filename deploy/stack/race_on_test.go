//go:build race

package stack_test

// raced: pages take ten times as long with the race detector, and time must run slower for it.
const raced = true
