import torch


class Sampler:
    def forward(self, probs, info):
        if self.backend == "flashinfer":
            return fused(probs)
        elif self.backend == "pytorch":
            return multinomial_with_seed(probs, info.sampling_seed)


def multinomial_with_seed(inputs, seed):
    return torch.argmax(torch.log(inputs + 1e-9) + noise(seed), dim=1)
