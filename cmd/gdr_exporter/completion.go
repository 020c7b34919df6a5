package main

// completionFlag is how a shell's completion asks what may stand at the end of a
// command line. That line is no whole one.
const completionFlag = "--completion-bash"

// completes reports whether a shell asks.
func completes(args []string) bool { return len(args) > 0 && args[0] == completionFlag }
