package targets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DefaultPort is the port of targets that name none.
const DefaultPort = 10480

// Target is a node that takes part.
type Target struct {
	// Host is an address, or a name in lower case without a dot at its end.
	Host string
	// Addr is Host if that is an address; else it is not valid.
	Addr netip.Addr
	Port uint16
	// Labels are those of its group; many targets share them, and nobody changes them.
	Labels map[string]string
	Source string // the file or the DNS name that it comes from
}

// Address is host and port as one dials them. It tells targets apart.
func (t Target) Address() string {
	return net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
}

// Name is what people call the node: its label node, else its host.
func (t Target) Name() string {
	if name := t.Labels["node"]; name != "" {
		return name
	}
	return t.Host
}

// railPrefix begins the labels that name rails: rail_3: mlx5_4/1 says that port 1 of
// mlx5_4 is on rail 3. Without a port it is 1.
const railPrefix = "rail_"

// Rail is the rail that labels say a port is on, "" if they say none. If they say
// several it is the first by name.
func (t Target) Rail(device string, port int) string {
	rail := ""
	for label, value := range t.Labels {
		name, is := strings.CutPrefix(label, railPrefix)
		if !is || name == "" || rail != "" && rail <= name {
			continue
		}
		if value == device+"/"+strconv.Itoa(port) || port == 1 && value == device {
			rail = name
		}
	}
	return rail
}

// ParseAddress reads host:port as a target's address is written. A host alone has
// the default port; an IPv6 address with a port is in brackets.
func ParseAddress(text string, port uint16) (Target, error) {
	t := Target{Port: port}
	host, err := t.splitPort(text)
	if err != nil {
		return Target{}, err
	}
	if t.Addr, err = parseAddr(host); err == nil {
		t.Host = t.Addr.String()
		return t, nil
	}
	if strings.ContainsAny(host, ":%") {
		return Target{}, err
	}
	t.Host = strings.ToLower(strings.TrimSuffix(host, "."))
	return t, checkName(t.Host)
}

// splitPort sets the port, if there is one, and returns the host.
func (t *Target) splitPort(text string) (host string, err error) {
	switch {
	case text == "":
		return "", errors.New("it is empty")
	case strings.Contains(text, "/"):
		return "", errors.New("host and port are wanted, no URL and no network")
	case strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]"):
		return text[1 : len(text)-1], nil
	case !strings.HasPrefix(text, "[") && strings.Count(text, ":") != 1:
		return text, nil // a name, or an address of either version
	}
	host, digits, err := net.SplitHostPort(text)
	if err != nil {
		return "", errors.New("it is not host:port, nor [address]:port")
	}
	number, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || number == 0 {
		return "", fmt.Errorf("%.20q is no port: 1 to 65535", digits)
	}
	t.Port = uint16(number)
	return host, nil
}

// parseAddr takes addresses that another node can be reached at. One with a zone
// means something on this node only.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, errors.New("it is no address")
	case addr.Zone() != "":
		return netip.Addr{}, errors.New("an address with a zone means something else on every node")
	}
	if addr = addr.Unmap(); addr.IsUnspecified() || addr.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%v is no address of a node", addr)
	}
	return addr, nil
}

// checkName takes names of hosts as they are in use, with the underscore that
// resolvers take too.
func checkName(name string) error {
	if len(name) > 253 {
		return errors.New("it is longer than a name can be (253)")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || strings.Trim(label, nameBytes) != "" {
			return errors.New("it is no host name")
		}
		last = label
	}
	// So that 10.0.0 and 10.0.0.256 are mistakes and no names.
	if strings.Trim(last, "0123456789") == "" {
		return errors.New("it is neither an address nor a host name")
	}
	return nil
}

const nameBytes = "abcdefghijklmnopqrstuvwxyz0123456789-_"
