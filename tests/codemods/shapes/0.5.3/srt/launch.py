def starts(args):
    return args.enable_deterministic_inference
