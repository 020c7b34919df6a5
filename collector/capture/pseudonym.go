package capture

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// KeySize is the size of a key of pseudonyms in bytes.
const KeySize = 32

// pseudonyms replaces what identifies a host or a part of it. The same input has
// the same pseudonym under a key, in the same form, so that what belonged together
// still does; without the key nobody can tell what it was.
type pseudonyms struct {
	key   []byte
	hosts []string // in small letters, the longest first

	mu   sync.Mutex
	memo map[string][]byte
	pids map[string]int
	// replaced counts the pseudonyms given out, by kind.
	replaced map[kind]int
}

// kind is what a pseudonym stands for.
type kind string

const (
	kindGUID kind = "GUID"
	kindGID  kind = "GID"
	kindMAC  kind = "MAC address"
	kindIP   kind = "IP address"
	kindUUID kind = "UUID"
	kindHost kind = "host name"
	kindText kind = "text" // with any of the above in it
	kindPath kind = "path" // with UUIDs and host names in it
	kindPID  kind = "process id"
)

func newPseudonyms(key []byte, hosts []string) *pseudonyms {
	p := &pseudonyms{key: key, memo: map[string][]byte{}, pids: map[string]int{}, replaced: map[kind]int{}}
	structural := structuralWords()
	for _, name := range hosts {
		// One that is a word of the table ("gpu", "node") says nothing, and paths are
		// made of those.
		name = strings.ToLower(name)
		if len(name) >= 3 && strings.ContainsFunc(name, unicode.IsLetter) && name != "localhost" && !structural[name] && !slices.Contains(p.hosts, name) {
			p.hosts = append(p.hosts, name)
		}
	}
	// A name is a part of the one with its domain.
	slices.SortFunc(p.hosts, func(a, b string) int { return len(b) - len(a) })
	return p
}

// structuralWords are those that the table of classes is made of, in small letters.
func structuralWords() map[string]bool {
	all := map[string]bool{}
	for i := range classes {
		r := &classes[i]
		for _, word := range strings.FieldsFunc(r.pattern+" "+r.field, func(c rune) bool { return !isWord(byte(c)) || c > 0x7f }) {
			all[strings.ToLower(word)] = true
		}
	}
	return all
}

// isWord reports whether a character can be in a word: inside of another word a
// name that is not distinctive is not found.
func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// digest is the pseudonym of what, before it is given a form.
func (p *pseudonyms) digest(kind kind, what string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := string(kind) + "\x00" + what
	if sum := p.memo[id]; sum != nil {
		return sum
	}
	p.replaced[kind]++
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(id))
	sum := mac.Sum(nil)
	p.memo[id] = sum
	return sum
}

// pid is the pseudonym of a process id: they are counted on in the order in which
// they are met, so that which of them are the same still shows, and nothing else. 0
// is none.
func (p *pseudonyms) pid(id string) string {
	if id == "0" {
		return id
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pids[id] == 0 {
		p.replaced[kindPID]++
		p.pids[id] = p.replaced[kindPID]
	}
	return strconv.Itoa(p.pids[id])
}

// macOf is the pseudonym of the 6 bytes of a MAC address: one that is locally
// administered, so that it is taken for no vendor's. Ports of a device count on
// in the last digit, which stays.
func (p *pseudonyms) macOf(b [6]byte) [6]byte {
	if b == ([6]byte{}) || b == ([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
		return b // none, and broadcast
	}
	last := b[5] & 0x0f
	b[5] &= 0xf0
	var out [6]byte
	copy(out[:], p.digest(kindMAC, string(b[:])))
	out[0] = out[0]&^1 | 2
	out[5] = out[5]&0xf0 | last
	return out
}

// guidOf is the pseudonym of an EUI-64. One that is made of a MAC address is made
// of that one's pseudonym.
func (p *pseudonyms) guidOf(b [8]byte) [8]byte {
	if b == ([8]byte{}) || b == ([8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
		return b // "none"
	}
	middle := [2]byte{b[3], b[4]}
	flipped := middle == [2]byte{0xff, 0xfe} // RFC 4291, appendix A
	inner := [6]byte{b[0], b[1], b[2], b[5], b[6], b[7]}
	if flipped {
		inner[0] ^= 2
	}
	if !flipped && middle != [2]byte{3, 0} { // of ConnectX: its MAC address with 0300 in it
		sum := p.digest(kindGUID, string(b[:3])+string(middle[:]))
		middle = [2]byte{sum[0], sum[1]}
		inner[3] ^= sum[2] // with another middle it is another MAC address
	}
	inner = p.macOf(inner)
	if flipped {
		inner[0] ^= 2
	}
	return [8]byte{inner[0], inner[1], inner[2], middle[0], middle[1], inner[3], inner[4], inner[5]}
}

// ip4Of is the pseudonym of an IPv4 address.
func (p *pseudonyms) ip4Of(a [4]byte) [4]byte {
	addr := netip.AddrFrom4(a)
	if addr.IsUnspecified() || addr.IsLoopback() {
		return a
	}
	sum := p.digest(kindIP, string(a[:]))
	out := [4]byte{10, sum[0], sum[1], sum[2]}
	if addr.IsLinkLocalUnicast() {
		out[0], out[1] = 169, 254
	}
	return out
}

// ip6Of is the pseudonym of an IPv6 address or GID: link-local, mapped and
// multicast ones stay that, all others are of a private prefix; the lower half of
// a GID is a GUID.
func (p *pseudonyms) ip6Of(a [16]byte) [16]byte {
	addr := netip.AddrFrom16(a)
	switch {
	case addr.IsUnspecified(), addr.IsLoopback():
		return a
	case addr.Is4In6():
		four := p.ip4Of([4]byte(a[12:]))
		copy(a[12:], four[:])
		return a
	}
	if !addr.IsLinkLocalUnicast() {
		sum := p.digest(kindGID, string(a[:8]))
		first := byte(0xfd)
		if addr.IsMulticast() {
			first = 0xff
		}
		copy(a[:8], sum)
		a[0] = first
	}
	lower := p.guidOf([8]byte(a[8:]))
	copy(a[8:], lower[:])
	return a
}

// uuidOf is the pseudonym of 16 bytes.
func (p *pseudonyms) uuidOf(b [16]byte) [16]byte {
	if b == ([16]byte{}) {
		return b
	}
	var out [16]byte
	copy(out[:], p.digest(kindUUID, string(b[:])))
	out[6], out[8] = out[6]&0x0f|0x40, out[8]&0x3f|0x80 // as random ones are, RFC 9562
	return out
}

// Forms of what is replaced. What has a digit or a colon on either side is a part
// of something else.
var (
	formUUID = regexp.MustCompile(`\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`)
	// Addresses of two or more groups, GUIDs, GIDs and MAC addresses; which of them
	// it is its groups tell.
	formGroups = regexp.MustCompile(`[0-9a-fA-F:]*:[0-9a-fA-F:]*[0-9a-fA-F:](?:\.[0-9]{1,3}){0,3}`)
	formBare   = regexp.MustCompile(`\b(?:0x)?[0-9a-fA-F]{16}\b|\b[0-9a-fA-F]{32}\b`)
	formIP4    = regexp.MustCompile(`\b[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\b`)
)

// of returns a text with what is of a kind replaced. What is not of the kind's
// form stays only if it cannot hold anything: see plain.
func (p *pseudonyms) of(kind kind, text string) string {
	switch kind {
	case kindPath:
		return p.host(p.uuids(text))
	case kindText:
		return p.host(formIP4.ReplaceAllStringFunc(p.bare(p.groups(p.uuids(text))), p.ip4))
	}
	trimmed := strings.TrimSpace(text)
	replaced, whole := p.exact(kind, trimmed)
	if !whole {
		// The driver wrote something else. Readers say that it is invalid, whatever
		// it is.
		if plain(trimmed) {
			return text
		}
		return strings.Replace(text, trimmed, "?", 1)
	}
	return strings.Replace(text, trimmed, replaced, 1)
}

// plain reports whether a text is too short and simple to name anything: "",
// "0", "(null)".
func plain(text string) bool { return len(text) <= 6 && !strings.ContainsAny(text, ":-.") }

// exact is the pseudonym of a text that is wholly of a kind.
func (p *pseudonyms) exact(kind kind, text string) (string, bool) {
	switch kind {
	case kindGUID, kindGID, kindMAC:
		return p.grouped(text)
	case kindIP:
		if _, err := netip.ParseAddr(text); err != nil {
			return "", false
		}
		if replaced, is := p.grouped(text); is {
			return replaced, true
		}
		return p.ip4(text), true
	case kindUUID:
		if hexadecimal(text) && len(text) == 32 {
			return p.bareUUID(text), true
		}
		prefix, rest := "", text
		if at := len(text) - 36; at > 0 && formPrefix.MatchString(text[:at]) {
			prefix, rest = text[:at], text[at:]
		}
		if len(rest) == 36 && formUUID.FindString(rest) == rest {
			return prefix + p.uuid(rest), true
		}
	case kindHost:
		return "host-" + hex.EncodeToString(p.digest(kindHost, strings.ToLower(text))[:4]), true
	}
	return "", false
}

// formPrefix is what NVIDIA writes before a UUID.
var formPrefix = regexp.MustCompile(`^[A-Z]{2,8}-$`)

func hexadecimal(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil
}

func (p *pseudonyms) uuids(text string) string { return formUUID.ReplaceAllStringFunc(text, p.uuid) }

func (p *pseudonyms) uuid(text string) string {
	other := p.bareUUID(strings.ReplaceAll(text, "-", ""))
	return other[:8] + "-" + other[8:12] + "-" + other[12:16] + "-" + other[16:20] + "-" + other[20:]
}

// bareUUID replaces a UUID without dashes, in the case that it has.
func (p *pseudonyms) bareUUID(text string) string {
	bytes, err := hex.DecodeString(text)
	if err != nil || len(bytes) != 16 {
		return text
	}
	other := p.uuidOf([16]byte(bytes))
	return sameCase(text, hex.EncodeToString(other[:]))
}

// sameCase writes hexadecimal digits in the case of other ones.
func sameCase(like, text string) string {
	if strings.ContainsAny(like, "ABCDEF") {
		return strings.ToUpper(text)
	}
	return text
}

// groups replaces all GUIDs, GIDs, IPv6 and MAC addresses.
func (p *pseudonyms) groups(text string) string {
	return formGroups.ReplaceAllStringFunc(text, func(found string) string {
		if replaced, is := p.grouped(found); is {
			return replaced
		}
		// A colon that follows is no part of the address.
		core := strings.Trim(found, ":")
		if replaced, is := p.grouped(core); is && core != "" {
			return strings.Replace(found, core, replaced, 1)
		}
		return found
	})
}

// grouped is the pseudonym of a GUID (4 groups of 4 digits), an Ethernet or
// InfiniBand hardware address (6 or 20 groups of 2), or a GID or IPv6 address.
func (p *pseudonyms) grouped(text string) (string, bool) {
	groups := strings.Split(text, ":")
	size := len(groups[0])
	for _, group := range groups {
		if len(group) != size {
			size = 0
		}
	}
	bytes, err := hex.DecodeString(strings.Join(groups, ""))
	switch {
	case err == nil && size == 2 && len(bytes) == 6:
		other := p.macOf([6]byte(bytes))
		return sameCase(text, spread(other[:], 1)), true
	case err == nil && size == 2 && len(bytes) == 8:
		other := p.guidOf([8]byte(bytes))
		return sameCase(text, spread(other[:], 1)), true
	case err == nil && size == 2 && len(bytes) == 20: // IPoIB: flags and queue pair, GID
		other := p.ip6Of([16]byte(bytes[4:]))
		copy(bytes[4:], other[:])
		return sameCase(text, spread(bytes, 1)), true
	case err == nil && size == 4 && len(bytes) == 8:
		other := p.guidOf([8]byte(bytes))
		return sameCase(text, spread(other[:], 2)), true
	case err == nil && size == 4 && len(bytes) == 16:
		other := p.ip6Of([16]byte(bytes))
		return sameCase(text, spread(other[:], 2)), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is6() {
		return "", false
	}
	return netip.AddrFrom16(p.ip6Of(addr.As16())).String(), true
}

// spread writes bytes in groups with colons between them.
func spread(bytes []byte, group int) string {
	var b strings.Builder
	for i := 0; i < len(bytes); i += group {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(hex.EncodeToString(bytes[i : i+group]))
	}
	return b.String()
}

// bare replaces GUIDs and UUIDs without separators.
func (p *pseudonyms) bare(text string) string {
	return formBare.ReplaceAllStringFunc(text, func(found string) string {
		digits := strings.TrimPrefix(found, "0x")
		if len(digits) == 32 {
			return p.bareUUID(digits)
		}
		number, err := hex.DecodeString(digits)
		if err != nil {
			return found
		}
		other := p.guidOf([8]byte(number))
		return found[:len(found)-len(digits)] + sameCase(digits, hex.EncodeToString(other[:]))
	})
}

func (p *pseudonyms) ip4(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() {
		return text
	}
	return netip.AddrFrom4(p.ip4Of(addr.As4())).String()
}

// host replaces the host's names wherever they stand.
func (p *pseudonyms) host(text string) string {
	for _, name := range p.hosts {
		lower := asciiLower(text)
		var b strings.Builder
		rest := 0
		for from := 0; ; {
			at := strings.Index(lower[from:], name)
			if at < 0 {
				break
			}
			at += from
			end := at + len(name)
			if from = at + 1; !distinctive(name) && (at > 0 && isWord(text[at-1]) || end < len(text) && isWord(text[end])) {
				continue
			}
			replaced, _ := p.exact(kindHost, name)
			b.WriteString(text[rest:at])
			b.WriteString(replaced)
			rest, from = end, end
		}
		text = b.String() + text[rest:]
	}
	return text
}

// distinctive reports whether a name is found inside of words too, such as in
// the name of an interface: "ibnode-17a0".
func distinctive(name string) bool {
	return len(name) >= 6 && strings.ContainsAny(name, "-.0123456789")
}

// asciiLower keeps all other bytes, so that places in both texts are the same.
func asciiLower(text string) string {
	lower := []byte(text)
	for i, c := range lower {
		if c >= 'A' && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	return string(lower)
}
