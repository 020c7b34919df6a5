// Package isolate makes the prober's runs and watches over them: in a goroutine of
// this process, or in a short-lived child of the same binary.
//
// A run calls drivers, and a driver can hang, crash, or leave the process with a
// CUDA that does not work any more. In the process only the first can be borne: the
// goroutine is left behind, and its thread with it. A child bears all three, and
// the device files that libcuda never closes go with it.
//
// Parent and child speak JSON. The child reads one order from its standard input,
// and stops its run when that ends; it writes a line for each stage that begins and
// a last one with the result to its standard output.
package isolate
