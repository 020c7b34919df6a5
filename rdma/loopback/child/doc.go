// Package child starts children of this program that call drivers for it, and buries
// them: what hangs or crashes in a child takes nothing else with it, and the device
// files that libcuda never closes go with the process.
//
// A child has three pipes for its standard files, its own process group and the root
// directory; it is killed with the thread that watches over it, and so with the parent.
package child
