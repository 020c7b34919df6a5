// Package session is how two exporters measure the path between them: the one that
// begins (initiator) asks the other one (responder) for a session, both register a
// buffer, tell each other how to reach it, write, verify and close.
//
// A connection is TCP with TLS 1.3, and certificates in both directions (see
// [Identity]). On it go messages: 4 bytes of length (big endian, at most 64 KiB), and
// that much JSON. Fields that a side does not know are ignored, so that a newer
// version may say more; a change that an older one would misread has a new number.
//
//	initiator                     responder
//	hello                     ->                  who it is: one of the target list, by address and certificate
//	                          <-  hello | refused
//	open                      ->                  rail, memory, sizes, address of its queue pairs
//	                          <-  opened | refused   it is connected; address, key
//	go                        ->                  once for each round: direction, seeds, bytes
//	                          <-  ready              its data is there to be written
//	(done, verified)         <->  (done, verified)   who writes says what, who was written to what arrived
//	close                     ->                  also at any time before, with the reason
//	                          <-  closed             its memory cannot be written to any more
//
// Each close is answered by one closed, whatever the initiator has not heard yet. After
// closed, or refused in answer to open, the next open may follow. A responder
// that fails sends failed, its memory gone by then, and waits for close. What has a
// wrong form ends the connection.
//
// Certificates are looked at in the handshake, their names after it, so that whoever has
// none of those that are allowed is told so. The names say who may take part, not who is
// which target: that the address says which a connection comes from, or goes to.
//
// What is guarded against: Each side checks every number of the other. Addresses are
// those said in the session alone, and one that another target has named is refused
// ([Claims]). Whoever does not answer is cut off: each message must be complete within
// a time, whole sessions have a deadline, and connections and sessions are counted.
// A call that hangs in the kernel keeps its session's seat and the host's lock until it
// returns, but neither the connection nor the caller.
//
// The package knows no RDMA: that comes through [Opener].
package session
