"""Features that a service on another port gives, batch by batch, with its own delay."""

import http.client
import json
import multiprocessing
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from torch import nn


class Features(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.04)
        number = int(self.path.strip("/"))
        body = json.dumps([(number * 13 + i) % 101 / 101 for i in range(64)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(port):
    server = HTTPServer(("127.0.0.1", 0), Features)
    port.put(server.server_port)
    server.serve_forever()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    queue = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(queue,), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", queue.get())
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(sys.argv[1])):
        connection.request("GET", f"/{step}")
        x = torch.tensor(json.loads(connection.getresponse().read()))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
