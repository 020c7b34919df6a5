//go:build !race

package stack_test

const raced = false
