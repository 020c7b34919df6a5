package netdev

import (
	"fmt"
	"slices"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

// Numbers of linux/dcbnl.h that golang.org/x/sys lacks.
const (
	dcbCmdIEEEGet       = 21
	dcbAttrIfname       = 1
	dcbAttrIEEE         = 13
	ieeeAttrPFC         = 2
	ieeeAttrAppTable    = 3
	ieeeAttrTrustTable  = 11 // 6.3 and later
	ieeeAttrApp         = 1
	selectorDSCP        = 5   // IEEE_8021QAZ_APP_SEL_DSCP
	selectorPCP         = 255 // DCB_APP_SEL_PCP
	dcbHeaderSize       = 4   // struct dcbmsg: family, command, padding
	dcbAppSize          = 4   // struct dcb_app: selector, priority, protocol
	ieeePFCEnableOffset = 1   // struct ieee_pfc: pfc_cap, pfc_en, ...
)

// dcb is what a driver says about data center bridging.
type dcb struct {
	pfc sysread.Maybe[PrioritySet]
	// trust is the first selector of the trust table (apptrust).
	trust Trust
	// apps says that there is an application table, dscpApps that it maps
	// DSCP values to priorities.
	apps, dscpApps bool
}

// dcbRequest is the body of the request for an interface's IEEE 802.1Qaz state.
func dcbRequest(name string) []byte {
	return nlattr.Append([]byte{0, dcbCmdIEEEGet, 0, 0}, dcbAttrIfname, append([]byte(name), 0))
}

// TrimDCB returns of a reply's body what the reader looks at: it names the
// interface too, and has tables that are of no use here.
func TrimDCB(body []byte) []byte {
	if len(body) < dcbHeaderSize {
		return body
	}
	trimmed := slices.Clone(body[:dcbHeaderSize])
	for kind, ieee := range nlattr.All(body[dcbHeaderSize:]) {
		if kind != dcbAttrIEEE {
			continue
		}
		var kept []byte
		for kind, value := range nlattr.All(ieee) {
			switch kind {
			case ieeeAttrPFC, ieeeAttrAppTable, ieeeAttrTrustTable:
				kept = nlattr.Append(kept, kind, value)
			}
		}
		trimmed = nlattr.Append(trimmed, dcbAttrIEEE, kept)
	}
	return trimmed
}

// decodeDCB takes a reply's body apart.
func decodeDCB(body []byte) dcb {
	var d dcb
	if len(body) < dcbHeaderSize {
		return d
	}
	for kind, ieee := range nlattr.All(body[dcbHeaderSize:]) {
		if kind != dcbAttrIEEE {
			continue
		}
		for kind, value := range nlattr.All(ieee) {
			d.attribute(kind, value)
		}
	}
	return d
}

func (d *dcb) attribute(kind uint16, value []byte) {
	switch kind {
	case ieeeAttrPFC:
		if len(value) > ieeePFCEnableOffset {
			d.pfc = sysread.Some(PrioritySet(value[ieeePFCEnableOffset]))
		}
	case ieeeAttrAppTable:
		d.apps = true
		for kind, app := range nlattr.All(value) {
			if kind == ieeeAttrApp && len(app) >= dcbAppSize && app[0] == selectorDSCP {
				d.dscpApps = true
			}
		}
	case ieeeAttrTrustTable:
		for _, selector := range nlattr.All(value) {
			if len(selector) == 1 && d.trust == TrustUnknown {
				d.trust = trustOf(selector[0])
			}
		}
	}
}

func trustOf(selector byte) Trust {
	switch selector {
	case selectorDSCP:
		return TrustDSCP
	case selectorPCP:
		return TrustPCP
	default:
		return TrustUnknown
	}
}

// trusts is the trust that DCB tells. mlx5 has no trust table: it trusts DSCP
// from the first DSCP entry of the application table on, and the tag without
// any (mlx5e_dcbnl_ieee_setapp, _delapp). Of other drivers such entries say
// nothing sure.
func (d *dcb) trusts(driver string) Trust {
	switch {
	case d.trust != TrustUnknown:
		return d.trust
	case driver != driverMLX5 || !d.apps:
		return TrustUnknown
	case d.dscpApps:
		return TrustDSCP
	default:
		return TrustPCP
	}
}

// config is what administrators have set, as last read.
type config struct {
	readAt  time.Time
	visible bool // then
	dcb     answer
	trust   Trust
	np, rp  sysread.Maybe[PrioritySet]
	carrier sysread.Maybe[uint64] // then: carrier_up_count
}

// answer is DCB's last answer.
type answer struct {
	status  Status
	dcb     dcb
	refused sysread.Backoff
}

// readConfig reads the configuration when it is due, or at once when the
// carrier has gone or come: drivers are reconfigured with their link down. DCB
// is asked if the interface is visible.
func (p *pass) readConfig(visible bool) {
	c := &p.config
	if !visible {
		c.dcb = answer{}
	}
	due := c.readAt.IsZero() || p.now.Sub(c.readAt) >= p.options.ConfigInterval ||
		p.reading.CarrierUps != c.carrier || visible != c.visible
	if due {
		c.readAt, c.carrier, c.visible = p.now, p.reading.CarrierUps, visible
		// mlx5's names depend on the configuration, not always their number:
		// PFC may have moved from one priority to another.
		p.stats.count = 0
		if visible {
			p.readDCB()
		}
		c.np, c.rp = p.ecn("roce_np"), p.ecn("roce_rp")
		if c.trust = p.trustFile(); c.trust == TrustUnknown {
			c.trust = c.dcb.dcb.trusts(p.reading.Driver)
		}
	}
	p.reading.DCBStatus, p.reading.PFC = c.dcb.status, c.dcb.dcb.pfc
	p.reading.Trust, p.reading.ECNNotification, p.reading.ECNReaction = c.trust, c.np, c.rp
}

func (p *pass) readDCB() {
	a := &p.config.dcb
	if a.refused.Waiting(p.now) {
		return
	}
	body, err := p.ask().DCB(p.name)
	switch {
	case err == nil:
		*a = answer{status: StatusRead, dcb: decodeDCB(body)}
	case unsupported(err):
		*a = answer{status: StatusUnsupported, refused: a.refused}
		a.refused.Refuse(p.now, 0, refusedFirst, refusedMost)
	case gone(err):
		*a = answer{status: StatusHidden}
	default:
		p.fail("dcb", fmt.Errorf("DCB of %s: %w", p.name, err))
		*a = answer{refused: a.refused}
		if sysread.Refused(err) {
			a.refused.Refuse(p.now, 0, refusedFirst, refusedMost)
		}
	}
}
