// Package relay is where workers and backbones meet, neither of which can be dialled from outside.
//
//	worker   --wss 443-->  gateway  --raw-->  hub  <--  control, one a backbone
//	                                          hub  <--  session, one a worker
//
// A Gateway is the public machine. It reads one upgrade request, picks a hub by path or host, hands on
// what it has read, and from then on copies bytes. A Hub challenges whoever comes, keeps workers in a
// lobby, offers them to backbones over control connections, and splices a worker to the session
// connection that a backbone dials for it, metering both directions. Backbone and Worker are the two
// clients; either may come through a gateway. HubClient reads a hub's ledger.
//
// Paths, with the hub's id in front where a gateway has to choose:
//
//	[/HUB]/worker         Upgrade: websocket            proof by a worker's token
//	[/HUB]/backbone       Upgrade: kvasir-control/1     proof by a backbone's grant
//	[/HUB]/session/ID     Upgrade: kvasir-session/1     the same, with the nonce of the offer
//	[/HUB]/ledger/…       plain requests                proof by a gateway's grant
//	/healthz              plain GET                     none
//
// A worker in the lobby gets text frames, each one JSON object (see lobbyFrame): "wait" with the reason,
// which it answers with "here", and at last "paired". From the next byte on the far side is a backbone.
// Messages on a control connection are described at message.
//
// Every connection has a deadline until it is known who it is, every queue a bound, and every copying
// loop a limit without progress. Handshakes run in a pool of bounded size; addresses and keys have
// limits; a hub lets workers in at a pace and tells the rest when to return (see Limits). A gateway has
// certificates of its own (ACME, CertFiles, or of the swarm's making), or it holds no key, reads the name
// in a ClientHello and passes TLS through to the hub (GatewayConfig.Passthrough).
//
// From pairing on the inner session seals everything, and legs between machines of one network shed the outer
// TLS under which they began (see shedHeader): from there on bytes are as the worker has sent them.
//
// Between TCP connections the kernel copies, where it can: a splice that goes costs this process no byte,
// and one that rests no buffer and no pipe.
package relay

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"kvasir/wire/ws"
)

// Protocols of upgrade requests beside ws.WebSocket.
const (
	controlProtocol = "kvasir-control/1"
	sessionProtocol = "kvasir-session/1"
)

// First parts of paths.
const (
	workerPath     = "worker"
	statementsPath = "statements"
	backbonePath   = "backbone"
	sessionPath    = "session"
	ledgerPath     = "ledger"
	healthPath     = "healthz"
)

// Errors of this package; test with errors.Is.
var (
	// ErrClosed: this side has been closed.
	ErrClosed = errors.New("relay: closed")
	// ErrPortInUse: another program listens there.
	ErrPortInUse = errors.New("relay: port in use")
	// ErrNotThere: the hub or gateway cannot be reached.
	ErrNotThere = errors.New("relay: not there")
	// ErrUntrusted: the far side's certificate is known neither to this system nor to the swarm.
	ErrUntrusted = errors.New("relay: certificate is not trusted")
	// ErrProtocol: the far side does not keep to what this package speaks.
	ErrProtocol = errors.New("relay: protocol error")
	// ErrIdle: nothing came from either side of a splice for Limits.Idle.
	ErrIdle = errors.New("relay: idle")
	// ErrStuck: one side of a splice took nothing for Limits.Stall.
	ErrStuck = errors.New("relay: stuck")
	// ErrGone: the other side of a pairing has left meanwhile.
	ErrGone = errors.New("relay: the other side has left")
	// ErrReplaced: a newer connection of the same key has taken this one's place.
	ErrReplaced = errors.New("relay: replaced by a newer connection of the same key")
	// ErrDraining: the hub takes nobody any more.
	ErrDraining = errors.New("relay: the hub is draining")
	// ErrReport: the hub has not taken a report.
	ErrReport = errors.New("relay: report not taken")
)

// Limits bound what a Gateway or a Hub spends on others. Zero fields mean the defaults.
type Limits struct {
	Head    int           // bytes of a request's head; 16 KiB
	Greet   time.Duration // from accepting a connection to knowing who it is; 8 s
	Pending int           // connections in that state; 512. One costs 128 KiB at most
	Conns   int           // connections in all; 16,384
	Address Quota         // of an address, IPv6 by /64; 20 a second, 128 at once, 1,024 sessions
	Key     Quota         // of a key, by a hub; 1 a second, 16 at once, 16,384 workers of a backbone
	Pace    float64       // workers that a hub accepts a second, all together; 90. Below 0: no limit
	// Behind is where many come from one address, as from a gateway, or from a backbone that dials for
	// hundreds of workers: Address does not hold there. nil means Loopback.
	Behind []netip.Prefix

	Idle   time.Duration // of a splice without a byte from either side; 45 s
	Stall  time.Duration // of a splice whose one side takes nothing; 45 s
	Linger time.Duration // from the end of one direction of a splice to that of the other; 2 s
	Tick   time.Duration // between counts of a splice; 1 s
	Wait   time.Duration // between signs of life in lobbies and on control connections; 20 s
	Silent time.Duration // after which silence there means death; 45 s
	Offer  time.Duration // in which a backbone has to take an offer; 10 s
}

func (l Limits) withDefaults() Limits {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	num(&l.Head, ws.DefaultHead)
	num(&l.Pending, 512)
	num(&l.Conns, 16<<10)
	l.Address.defaults(20, 128, 1024)
	l.Key.defaults(1, 16, 16<<10)
	if l.Pace == 0 {
		l.Pace = 90 // with what a wait makes uneven, never above 100 within a second
	}
	if l.Behind == nil {
		l.Behind = Loopback
	}
	// A hub that gives up on a stranger and a gateway that then ends both legs stay within 10 s together.
	def(&l.Greet, 8*time.Second)
	def(&l.Linger, 2*time.Second)
	def(&l.Idle, 45*time.Second)
	def(&l.Stall, 45*time.Second)
	def(&l.Tick, time.Second)
	def(&l.Wait, 20*time.Second)
	def(&l.Silent, 45*time.Second)
	def(&l.Offer, 10*time.Second)
	return l
}

// Listen listens on a TCP address, and says plainly why it cannot.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	var no syscall.Errno
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, &no) && (no == syscall.EADDRINUSE || no == 10048): // WSAEADDRINUSE
		return nil, fmt.Errorf("%w: another program listens on %s; stop it or choose another address", ErrPortInUse, addr)
	case errors.As(err, &no) && no == syscall.EACCES:
		return nil, fmt.Errorf("listen on %s: %w; ports below 1024 may need a right (CAP_NET_BIND_SERVICE)", addr, err)
	}
	return nil, err
}

// splitPath takes the hub's id off the front of a path, where there is one.
func splitPath(path string) (hub, rest string) {
	path = strings.TrimPrefix(path, "/")
	first, after, more := strings.Cut(path, "/")
	switch first {
	case workerPath, statementsPath, backbonePath, sessionPath, ledgerPath, healthPath:
		return "", path
	}
	if !more || first == "" {
		return "", path
	}
	return first, after
}

// joinPath puts the hub's id, which may be empty, before a path.
func joinPath(hub, rest string) string {
	if hub == "" {
		return "/" + rest
	}
	return "/" + hub + "/" + rest
}

// asks reports whether a request asks for an upgrade, and to protocol unless that is empty.
func asks(r *http.Request, protocol string) bool {
	for _, line := range r.Header.Values("Upgrade") {
		for p := range strings.SplitSeq(line, ",") {
			if protocol == "" || strings.EqualFold(strings.TrimSpace(p), protocol) {
				return true
			}
		}
	}
	return false
}
