package sysread

// Maybe is a value that may not have been read: the zero Maybe is "not known",
// which is never the same as zero.
type Maybe[T any] struct {
	Value T
	Known bool
}

// Some returns a known value.
func Some[T any](value T) Maybe[T] { return Maybe[T]{Value: value, Known: true} }
