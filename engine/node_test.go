package engine_test

import (
	"context"
	"testing"

	"kvasir/engine"
)

// Ctrl-C may come before anybody was served.
func TestNodesThatAreStoppedAtOnceEndInOrder(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h := home(t)
	if _, err := h.NewRoot(); err != nil {
		t.Fatal(err)
	}
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		hub := must[*engine.HubNode](t)(engine.NewHubNode(engine.HubOptions{Home: h, Listen: "127.0.0.1:0"}))
		gateway := must[*engine.GatewayNode](t)(engine.NewGatewayNode(engine.GatewayOptions{
			Home: h, Listen: "127.0.0.1:0", Hubs: []engine.HubRef{hub.Ref},
		}))
		serve := must[*engine.ServeNode](t)(engine.NewServeNode(engine.ServeOptions{
			BackboneOptions: engine.BackboneOptions{Home: h, Hubs: []engine.HubRef{hub.Ref}}, Listen: "127.0.0.1:0",
		}))
		for _, run := range []func(context.Context) error{serve.Run, gateway.Run, hub.Run} {
			if err := run(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
