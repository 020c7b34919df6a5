// Package schedule says which node measures which other one, and when.
//
// It is a round-robin tournament over the sorted list of nodes, played by the
// wall clock: every node works out by itself whom it meets now, and nobody has to
// be asked first. In one step of the tournament each node meets at most one other,
// and after all steps (one less than there are nodes, or as many if their number
// is odd) each has met each once. Which of the two begins is settled too, and
// changes from pass to pass.
//
// Time is cut into frames, the same on all nodes (counted from 1970 in UTC). A
// frame holds some slots for pings, and what is left of it is one slot for a
// measurement of bandwidth: the two kinds can never meet on a node. Each slot for
// pings is a step of a tournament. The steps of the tournament of bandwidth are
// windows of many frames, Degree of them a round; a pair measures in one frame of
// the window, which is drawn from its numbers, so that not all pairs of a cluster
// send at once. Since in a window a node has one partner only, it may try again in
// a later frame of the same window without being in anybody's way.
//
//	round 1h   |-- window 1 --|-- window 2 --|-- window 3 --|-- window 4 --|
//	frame 1m   | ping 10s | ping 10s |       bandwidth 40s                 |
//	slot       | guard |  begin within a quarter ... deadline |    guard   |
//
// The defaults, which must be the same on all nodes of a list ([Options.Version]
// tells them apart):
//
//	Round     1h   a good cable does not go bad by the minute; the loopback run's interval
//	Degree    4    neighbours a round: from four sides one bad peer and one bad node tell apart, and the cost of a node is the same in a cluster of 8 and of 10,000
//	Frame     1m   a node that nobody reaches shows within a minute
//	Pings     2    a frame, so that 128 nodes have pinged each other in about an hour
//	Ping      10s  a connection refused for want of an answer has time to end as such
//	Guard     2s   clocks kept by NTP differ by milliseconds, by a second while a leap second is smeared
//	Tries     3    a window, two frames apart: the loopback run holds the probe lock for ten seconds a pair, a minute and more in all
//
// Clocks: while each clock is within half of Guard of the true time, a partner that
// is called finds itself in the same slot. While any two clocks differ by less than
// twice Guard, a node takes part in no two measurements at once. Beyond that, and
// while nodes have different lists, both can happen; then the limit on sessions
// refuses the second. The schedule itself depends on no other node: whoever is
// missing costs its partner that slot and nobody else anything.
package schedule
