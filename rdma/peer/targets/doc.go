// Package targets keeps the list of the nodes that measure each other.
//
// It comes from files in Prometheus's format (file_sd: JSON or YAML) and from DNS
// (A, AAAA, SRV, as a headless Service gives). No node asks another one for it: two
// nodes have the same list if their sources say the same, and [List.Version] tells
// whether they do. Order, spelling and repetition make no difference.
//
// A source that fails keeps what it said last, and says so: a name server that is
// away for a minute must not empty a cluster. What is half right is not taken at
// all, since a list that is cut off looks like nodes that have gone.
//
// The defaults:
//
//	port           10480   that of --peer.listen-address
//	files          looked at every 5s; a file that changed is read when it was the same in two looks
//	DNS            asked every 30s (a tenth more or less, so that a cluster does not ask at once), 10s for an answer
//	targets        at most 16,384; more are a mistake, or a list of something else
//	file           at most 16 MiB
//
// The answer of a name server has 64 KiB at most, which is about 4,000 addresses:
// larger clusters need files.
package targets
