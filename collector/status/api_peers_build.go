package status

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/peer"
	"gdr_exporter/rdma/peer/session"
)

// What a DocPeers holds at most.
const (
	mostPeers     = 20_000
	mostPeerPaths = 10_000
)

// PeersDocument returns what is known of the paths to other nodes, in the form of
// /api/v1/peers. Without a runner it says that.
func PeersDocument(s *snapshot.Snapshot) *DocPeers { return peersDocument(s, mostPeers, mostPeerPaths) }

// WriteJSON writes the document as JSON, without indentation: of a large cluster it is
// megabytes.
func (d *DocPeers) WriteJSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(d); err != nil {
		return fmt.Errorf("peers as JSON: %w", err)
	}
	return nil
}

// peersDocument holds at most so many peers, and of the first ones at most so many
// paths in all.
func peersDocument(s *snapshot.Snapshot, peers, paths int) *DocPeers {
	doc := &DocPeers{SchemaVersion: PeersSchemaVersion, Taken: s.Taken.UTC(), Sessions: []DocPeerSessions{}, Rails: []DocPeerRail{}, Peers: []DocPeer{}}
	if s.Peer == nil {
		return doc
	}
	status := s.Peer
	doc.Measuring, doc.List = true, docPeerList(s)
	doc.Certificate = docPeerCertificate(status.Certificate, s.Taken)
	doc.Round, doc.Next = moment(status.Round), moment(status.Next)
	doc.CoverPing, doc.CoverBandwidth = duration(status.CoverPing), duration(status.CoverBandwidth)
	doc.SpentBytes, doc.BudgetBytes = pointer(true, status.Spent), pointer(status.Budget > 0, status.Budget)
	doc.Sessions = docPeerSessions(status)
	for i := range status.Rails {
		doc.Rails = append(doc.Rails, docPeerRail(&status.Rails[i]))
	}
	doc.addPeers(status, peers, paths)
	cleanValue(reflect.ValueOf(doc).Elem())
	return doc
}

// duration is a time span in seconds, nil if there is none.
func duration(d time.Duration) *float64 { return pointer(d > 0, d.Seconds()) }

// positive is a rate, nil if it is none.
func positive(f float64) *float64 { return pointer(f > 0, f) }

func docPeerList(s *snapshot.Snapshot) *DocPeerList {
	status, d := s.Peer, s.PeerDisagreements()
	list := &DocPeerList{
		Name: status.Name, Self: some(status.Self), SelfText: some(status.SelfText), Targets: status.Targets, Version: some(status.List), Options: some(status.Options), Text: some(status.ListText),
		Sources: []DocPeerSource{}, Heard: d.Heard, OtherLists: d.List, OtherOptions: d.Options, OtherClocks: d.Clock,
	}
	for i := range status.Sources {
		source := &status.Sources[i]
		list.Sources = append(list.Sources, DocPeerSource{Name: source.Name, Targets: source.Targets, Good: moment(source.Good), Text: some(source.Text)})
	}
	return list
}

func docPeerCertificate(c *peer.Certificate, now time.Time) *DocPeerCertificate {
	if c == nil {
		return nil
	}
	return &DocPeerCertificate{Begins: moment(c.Begins), Ends: moment(c.Ends), State: string(c.State(now)), Text: some(c.Text)}
}

func docPeerSessions(status *peer.Status) []DocPeerSessions {
	all := []DocPeerSessions{}
	for _, role := range []peer.Role{peer.Initiator, peer.Responder} {
		for _, kind := range snapshot.PeerKinds {
			for _, class := range peer.Classes {
				if n := status.Sessions[peer.SessionKind{Role: role, Kind: kind, Class: class}]; n > 0 {
					all = append(all, DocPeerSessions{string(role), string(kind), string(class), uint64(n)})
				}
			}
		}
	}
	return all
}

func docPort(p session.Port) DocPeerPort { return DocPeerPort{p.Device, p.Port} }

func docPeerRail(r *peer.OwnRail) DocPeerRail {
	rail := DocPeerRail{Port: docPort(r.Port), Rail: some(r.Rail), BytesPerSecond: positive(r.Rate)}
	rail.Tallies = []DocPeerTally{docPeerTally(session.Ping, session.Host, &r.Pings)}
	for _, memory := range snapshot.PeerMemories {
		if tally := r.Bandwidth[memory]; tally != nil {
			rail.Tallies = append(rail.Tallies, docPeerTally(session.Bandwidth, memory, tally))
		}
	}
	return rail
}

func docPeerTally(kind session.Kind, memory session.Memory, t *peer.Tally) DocPeerTally {
	tally := DocPeerTally{
		Kind: string(kind), Memory: string(memory), Good: t.Good, Bad: t.Bad, LatencyMedian: duration(t.Median), LatencyWorst: duration(t.Worst), Rates: []DocPeerRates{},
	}
	for _, direction := range []session.Direction{session.Write, session.Reverse, session.Both} {
		if rates, known := t.Rates[direction]; known && rates.Count > 0 {
			tally.Rates = append(tally.Rates, DocPeerRates{string(direction), rates.Count, positive(rates.Least), positive(rates.Median)})
		}
	}
	return tally
}

// addPeers adds the peers, the bad ones first.
func (d *DocPeers) addPeers(status *peer.Status, peers, paths int) {
	var order [3][]int // bad, neighbours, others
	states := make([]snapshot.PeerState, len(status.Peers))
	for i := range status.Peers {
		p := &status.Peers[i]
		states[i] = snapshot.PeerStateOf(p)
		switch states[i] {
		case snapshot.PeerBad:
			d.Bad++
		case snapshot.PeerGood:
			d.Good++
		default:
			d.Unknown++
		}
		switch {
		case states[i] == snapshot.PeerBad:
			order[0] = append(order[0], i)
		case p.Neighbour:
			order[1] = append(order[1], i)
		default:
			order[2] = append(order[2], i)
		}
	}
	for _, group := range order {
		for _, i := range group {
			p := &status.Peers[i]
			if len(d.Peers) >= peers {
				d.PeersOmitted++
				continue
			}
			shown := docPeer(p, states[i])
			if paths -= len(p.Paths); paths >= 0 {
				shown.Paths = docPeerPaths(p)
			} else {
				d.PathsOmitted += len(p.Paths)
			}
			d.Peers = append(d.Peers, shown)
		}
	}
}

func docPeer(p *peer.Peer, state snapshot.PeerState) DocPeer {
	shown := DocPeer{
		Name: p.Name, Target: p.Target, State: string(state), Neighbour: p.Neighbour, Listener: some(string(p.Listener)), Tried: moment(p.Tried), Failure: docPeerFailure(p.Failure), Paths: []DocPeerPath{},
	}
	if c := p.Contact; c != nil {
		shown.Contact = &DocPeerContact{Time: c.Time.UTC(), RTTSeconds: duration(c.RTT), Build: some(c.Build), List: some(c.List), Options: some(c.Options), Clock: c.Clock.Seconds()}
	}
	return shown
}

func docPeerFailure(f *session.Failure) *DocPeerFailure {
	if f == nil {
		return nil
	}
	by := "self"
	if f.Peer {
		by = "peer"
	}
	return &DocPeerFailure{FoundBy: by, Reason: string(f.Reason), Stage: some(f.Stage), Call: some(f.Call), Errno: some(f.Errno), Status: some(f.Status), Text: f.Text}
}

func docPeerPaths(p *peer.Peer) []DocPeerPath {
	paths := make([]DocPeerPath, len(p.Paths))
	for i := range p.Paths {
		from := &p.Paths[i]
		path := DocPeerPath{Own: docPort(from.Own), Peer: docPort(from.Peer), Rail: some(from.Rail), Basis: string(from.Basis), Results: []DocPeerResult{}}
		if from.Skipped != "" {
			path.Skipped = some(string(from.Skipped))
			if from.SkippedText != "" {
				path.Skipped = some(string(from.Skipped) + ": " + from.SkippedText)
			}
		}
		if r := from.Reached; r != nil {
			path.Address = &DocPeerAddress{Time: r.Time.UTC(), Address: r.Address, Answers: r.OK, RTTSeconds: duration(r.RTT), Text: some(r.Text)}
		}
		for _, m := range snapshot.PeerMeasurements(from) {
			path.Results = append(path.Results, docPeerResult(m))
		}
		paths[i] = path
	}
	return paths
}

func docPeerResult(m *peer.Measurement) DocPeerResult {
	result := DocPeerResult{
		Kind: string(m.Kind), Memory: string(m.Memory), Time: m.Time.UTC(), Class: string(m.Class), Text: some(m.Text), Failure: docPeerFailure(snapshot.PeerFailure(m)),
		Limit: positive(m.Limit), LimitOf: some(m.LimitOf),
	}
	if m.Result == nil {
		return result
	}
	wrong := snapshot.PeerMismatches(m)
	result.Session, result.Mismatches = some(m.Result.ID), pointer(len(m.Result.Rounds) > 0, wrong)
	if l := peer.LatencyOf(m.Result); l != nil {
		result.LatencyMedian, result.LatencyP99, result.Lost = duration(l.Median), duration(l.P99), pointer(true, l.Lost)
	}
	for direction, rate := range map[session.Direction]**float64{session.Write: &result.Write, session.Reverse: &result.Reverse, session.Both: &result.Both} {
		if value, known := snapshot.PeerRate(m, direction); known {
			*rate = &value
		}
	}
	own, theirs := &m.Result.Facts, &m.Result.PeerFacts
	result.GPU, result.Method, result.PeerGPU, result.GIDType = some(own.GPU), some(own.Method), some(theirs.GPU), some(own.GIDType)
	return result
}
