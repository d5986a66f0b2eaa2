package engine

import (
	"log/slog"
	"net"
)

// warnPlain says loudly that a port without TLS can be reached from elsewhere: who listens on the way reads
// tokens there. What workers and backbones say to each other is sealed in any case.
func warnPlain(log *slog.Logger, at net.Addr) {
	tcp, ok := at.(*net.TCPAddr)
	if log == nil || ok && tcp.IP.IsLoopback() {
		return
	}
	log.Warn("this port speaks no TLS, so tokens can be read on the way: let only what speaks TLS before it reach it, "+
		"or listen on 127.0.0.1", "listen", at.String())
}
