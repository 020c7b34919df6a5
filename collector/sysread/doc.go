// Package sysread reads kernel text files (sysfs, procfs) for the readers: it
// keeps descriptors open, counts what it asks of the kernel, names errors, and
// spaces out attempts at what keeps refusing.
//
// One rule holds for everybody who uses it: absent is not zero, and unreadable
// is not down. A value that could not be read is an unknown Maybe, and why is a
// ReadError beside it.
package sysread
